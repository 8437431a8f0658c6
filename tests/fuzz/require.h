// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep::fuzz {

/// Ends the process such that libFuzzer reports a finding.
inline void require(bool condition, const std::string& what) {
  if (!condition) {
    std::fprintf(stderr, "found: %s\n", what.c_str());
    std::abort();
  }
}

/// Requires that a message names the file and is one short line of text.
inline void require_fit_to_print(const CheckpointError& error, const std::string& path) {
  const std::string message = error.what();
  require(message.find(path) != std::string::npos, "a message without the path: " + message);
  require(message.size() < 1500, "a message that is too long: " + message);
  for (const char c : message) {
    require(
        static_cast<unsigned char>(c) >= ' ' && c != '\x7f', "a control character in a message");
  }
}

}  // namespace lockstep::fuzz
