// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lockstep/base/error.h"

namespace lockstep::config {

/// Returns the message of the ConfigError that `call` throws; "" if it throws none.
template <typename Call>
std::string config_error_of(const Call& call) {
  try {
    call();
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

}  // namespace lockstep::config
