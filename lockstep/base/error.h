// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>

namespace lockstep {

/// The base class of all exceptions that Lockstep throws.
///
/// A message reads `[where] what happened; got X, expected Y; try Z (rank r of n)`. The constructor
/// adds the brackets and the rank; the caller writes the rest. There are exactly three subclasses,
/// one for each reaction of a caller.
class [[nodiscard]] Error : public std::runtime_error {
 public:
  Error(const std::string& where, const std::string& what);
};

/// Reports an error that the user can fix: a value, a file, a call out of order. The job should
/// end with exit code 2.
class [[nodiscard]] ConfigError : public Error {
 public:
  using Error::Error;
};

/// Reports that a collective failed or timed out, or that the ranks disagree on the operation. The
/// group cannot be used any more: create a new one, which in practice means restart the job.
class [[nodiscard]] CommError : public Error {
 public:
  /// `op`: the operation's name. `peer`: the rank it failed on, -1 if unknown. `seconds`: how long
  /// it took.
  CommError(const std::string& op, const std::string& what, int peer = -1, double seconds = 0);
  const std::string& op() const { return op_; }
  int peer() const { return peer_; }
  double seconds() const { return seconds_; }

 private:
  std::string op_;
  int peer_;
  double seconds_;
};

/// Reports that a checkpoint cannot be written, or must not be trusted.
class [[nodiscard]] CheckpointError : public Error {
 public:
  /// `path`: the file or folder; `tensor`: the tensor's name, empty if the error concerns all of
  /// the file.
  CheckpointError(const std::string& path, const std::string& what, const std::string& tensor = "");
  const std::string& path() const { return path_; }
  const std::string& tensor() const { return tensor_; }

 private:
  std::string path_;
  std::string tensor_;
};

/// Lists the exit codes of all Lockstep programs. Any other failure ends with the failing rank's
/// exit code.
enum ExitCode : int {
  kExitOk = 0,
  kExitFailure = 1,
  kExitUsage = 2,        ///< Usage or configuration.
  kExitPreempted = 75,   ///< The job has saved its state after a request to stop.
  kExitSignalBase = 128  ///< 128 + the signal's number.
};

namespace detail {
[[noreturn]] void assertion_failed(
    const char* file, int line, const char* condition, const std::string& why);
}  // namespace detail

}  // namespace lockstep

/// Checks a condition that only a bug in Lockstep can break. `why` is a string for the bug report.
#define LOCKSTEP_ASSERT(condition, why)                                            \
  do {                                                                             \
    if (!(condition)) {                                                            \
      ::lockstep::detail::assertion_failed(__FILE__, __LINE__, #condition, (why)); \
    }                                                                              \
  } while (false)
