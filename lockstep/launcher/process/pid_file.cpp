// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/process/pid_file.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::launcher {
namespace {

/// Returns 0, or errno.
int write_atomically(const std::string& path, const std::string& text) {
  std::string temporary = path + ".XXXXXX";
  const UniqueFd fd(::mkstemp(temporary.data()));
  if (!fd.is_open()) {
    return errno;
  }
  constexpr mode_t kMode = 0644;
  const bool written =
      ::write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
      ::fchmod(fd.get(), kMode) == 0 && ::rename(temporary.c_str(), path.c_str()) == 0;
  const int error = errno;
  if (!written) {
    ::unlink(temporary.c_str());
  }
  return written ? 0 : error;
}

}  // namespace

PidFile::PidFile(std::string path) : path_(std::move(path)) {
  if (path_.empty()) {
    return;
  }
  if (const int error = write_atomically(path_, fmt::format("{}\n", ::getpid())); error != 0) {
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
