// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include "lockstep/accelerator/options/option_text.h"
#include "lockstep/zero_options/zero_rows.h"

namespace lockstep {

/// Returns the options that differ from ZeroPlugin(), as "name=value name=value" in the order of
/// their names; "defaults" if none does.
inline std::string zero_text(const ZeroPlugin& plugin) {
  const auto texts_of = [](const ZeroPlugin& zero) {
    std::map<std::string, std::string> texts;
    visit_zero_options(zero, [&](const char* name, const auto& value, const auto& /*row*/) {
      texts[name] = internal::option_text(value);
    });
    return texts;
  };
  const std::map<std::string, std::string> defaults = texts_of(ZeroPlugin());
  std::string text;
  for (const auto& [name, value] : texts_of(plugin)) {
    if (value != defaults.at(name)) {
      text += (text.empty() ? "" : " ") + name + "=" + value;
    }
  }
  return text.empty() ? "defaults" : text;
}

}  // namespace lockstep
