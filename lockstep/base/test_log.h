// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/base/log.h"

namespace lockstep {

/// Returns the lines that `body` logs, on any thread: log() calls its sink with a lock held.
inline std::vector<std::string> logged_by(const std::function<void()>& body) {
  std::vector<std::string> lines;
  set_log_sink([&](const std::string& line) { lines.push_back(line); });
  body();
  set_log_sink(nullptr);
  return lines;
}

}  // namespace lockstep
