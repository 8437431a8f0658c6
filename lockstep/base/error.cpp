// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/error.h"

#include "lockstep/base/rank.h"

namespace lockstep {

Error::Error(const std::string& where, const std::string& what)
    : std::runtime_error("[" + where + "] " + what + rank_suffix()) {}

CommError::CommError(const std::string& op, const std::string& what, int peer, double seconds)
    : Error(op, what), op_(op), peer_(peer), seconds_(seconds) {}

CheckpointError::CheckpointError(
    const std::string& path, const std::string& what, const std::string& tensor)
    : Error(tensor.empty() ? path : path + ": " + tensor, what), path_(path), tensor_(tensor) {}

namespace detail {

void assertion_failed(const char* file, int line, const char* condition, const std::string& why) {
  throw Error(
      std::string(file) + ":" + std::to_string(line),
      "this is a bug in Lockstep, please report it: " + std::string(condition) +
          " does not hold; " + why);
}

}  // namespace detail
}  // namespace lockstep
