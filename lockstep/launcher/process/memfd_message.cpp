// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/process/memfd_message.h"

#include <cerrno>
#include <fstream>
#include <iterator>
#include <sys/mman.h>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/system_error.h"

namespace lockstep::launcher {

MemfdMessage::MemfdMessage() : file_(::memfd_create("lockstep-launch-result", MFD_CLOEXEC)) {
  if (!file_.is_open()) {
    throw Error(
        "lockstep::launch",
        fmt::format(
            "the shared memory for a rank's results cannot be created: {}",
            system_error_text(errno)));
  }
  path_ = fmt::format("/proc/{}/fd/{}", ::getpid(), file_.get());
}

void MemfdMessage::write_to(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) {
    throw Error(
        "lockstep::launch",
        fmt::format(
            "{} bytes cannot be sent to the process that called launch(); it may have ended",
            bytes.size()));
  }
}

std::string MemfdMessage::read_from(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open() || file.bad()) {
    throw Error(
        "lockstep::launch",
        fmt::format("{} cannot be read; the process that called launch() may have ended", path));
  }
  return bytes;
}

}  // namespace lockstep::launcher
