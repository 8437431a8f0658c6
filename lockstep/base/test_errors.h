// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lockstep/base/error.h"

namespace lockstep {

/// Returns the message of the `ExpectedError` that `call` throws; "no error" without one.
template <typename ExpectedError = ConfigError, typename Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const ExpectedError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace lockstep
