// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "lockstep/base/env.h"

namespace lockstep {

/// Reads LOCKSTEP_<name>, or else ACCELERATE_<name>.
inline std::optional<std::string> either_text(
    const Environment& environment, const std::string& name) {
  auto ours = environment.text("LOCKSTEP_" + name);
  return ours ? ours : environment.text("ACCELERATE_" + name);
}

inline std::optional<bool> either_boolean(const Environment& environment, const std::string& name) {
  const auto ours = environment.boolean("LOCKSTEP_" + name);
  return ours ? ours : environment.boolean("ACCELERATE_" + name);
}

}  // namespace lockstep
