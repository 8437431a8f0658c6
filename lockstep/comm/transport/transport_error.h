// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mutex>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/comm/transport/transport.h"

namespace lockstep::comm {

/// Returns the message of a c10 error without its stack frames.
inline std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

/// Throws ConfigError for a tensor outside CPU memory. `transport`: its name, for the message.
inline void check_cpu_tensors(const Collective& collective, const char* transport) {
  for (const at::Tensor* tensor : {&collective.input, &collective.output}) {
    if (tensor->defined() && !tensor->is_cpu()) {
      throw ConfigError(
          name_of(collective.op),
          std::string(transport) + " sends CPU tensors only; got one on " + tensor->device().str());
    }
  }
}

/// Returns the error of an `operation` after the first failure of its group, `cause`.
inline CommError error_after(const std::string& cause, const char* operation) {
  return CommError(operation, "the group failed earlier and cannot be used: " + cause);
}

/// Holds the first failure of a group, after which every operation fails. Thread-safe.
class GroupFailure {
 public:
  /// Returns whether this is the first failure, whose reason counts.
  bool mark_failed(const std::string& why) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const bool is_first = cause_.empty();
    if (is_first) {
      cause_ = why;
    }
    return is_first;
  }
  /// Throws CommError if the group has failed.
  void check(Op op) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!cause_.empty()) {
      throw error_after(cause_, name_of(op));
    }
  }

 private:
  mutable std::mutex mutex_;
  std::string cause_;
};

}  // namespace lockstep::comm
