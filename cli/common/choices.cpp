// SPDX-License-Identifier: Apache-2.0
#include "cli/common/choices.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/text/suggest.h"

namespace lockstep::cli {

CLI::Validator one_of(const std::vector<std::string>& words) {
  return {
      [words](const std::string& text) -> std::string {
        if (std::find(words.begin(), words.end(), text) != words.end()) {
          return "";
        }
        return fmt::format(
            "got '{}', expected one of {}{}",
            text,
            fmt::join(words, ", "),
            did_you_mean(text, words));
      },
      fmt::format("{{{}}}", fmt::join(words, ","))};
}

}  // namespace lockstep::cli
