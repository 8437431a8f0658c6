// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace lockstep::comm {

/// Returns the message of a c10 error without its stack frames.
inline std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

}  // namespace lockstep::comm
