// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/process/pid_file.h"

#include <cerrno>
#include <cstring>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/error.h"

namespace lockstep::launcher {

PidFile::PidFile(std::string path) : path_(std::move(path)) {
  if (path_.empty()) {
    return;
  }
  constexpr mode_t kMode = 0644;
  try {
    write_atomically(path_, fmt::format("{}\n", ::getpid()), kMode);
  } catch (const Error&) {
    const int error = errno;
    throw ConfigError(
        "lockstep launch",
        fmt::format("the pid file cannot be written: {}: {}", path_, std::strerror(error)));
  }
}

PidFile::~PidFile() {
  if (!path_.empty()) {
    ::unlink(path_.c_str());
  }
}

}  // namespace lockstep::launcher
