// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mutex>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/comm/transport/transport.h"

namespace lockstep::comm {

/// The error of operations after the one that failed for `cause`.
inline CommError error_after(const std::string& cause, Op op) {
  return CommError(name_of(op), "the group is dead since an earlier failure: " + cause);
}

/// The first failure of a group, after which no operation works. Thread-safe.
class GroupError {
 public:
  void mark_failed(const std::string& why) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (cause_.empty()) {
      cause_ = why;
    }
  }
  /// Throws if the group has failed.
  void refuse(Op op) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!cause_.empty()) {
      throw error_after(cause_, op);
    }
  }

 private:
  mutable std::mutex mutex_;
  std::string cause_;
};

}  // namespace lockstep::comm
