// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/atomic_file.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr mode_t kModeOfMkostemp = 0600;

[[noreturn]] void fail_to_write(const fs::path& path, int error) {
  const std::string what = fmt::format("cannot be written; {}", std::strerror(error));
  errno = error;
  throw Error(path.native(), what);
}

}  // namespace

AtomicFile::AtomicFile(const fs::path& target, mode_t mode)
    : name_(target.native() + ".tmp-XXXXXX") {
  file_.reset(::mkostemp(name_.data(), O_CLOEXEC));
  if (!file_.is_open()) {
    fail_to_write(target, errno);
  }
  if (mode != kModeOfMkostemp) {
    (void)::fchmod(file_.get(), mode);  // Some file systems have no permissions.
  }
}

AtomicFile::~AtomicFile() {
  if (!renamed_) {
    const int error = errno;
    ::unlink(name_.c_str());
    errno = error;
  }
}

void AtomicFile::write(const std::string& text) const {
  for (size_t at = 0; at < text.size();) {
    const ssize_t size = ::write(file_.get(), text.data() + at, text.size() - at);
    if (size < 0 && errno != EINTR) {
      fail_to_write(name_, errno);
    }
    at += size > 0 ? static_cast<size_t>(size) : 0;
  }
  if (::fsync(file_.get()) != 0) {
    fail_to_write(name_, errno);
  }
}

bool AtomicFile::rename_to(const fs::path& target, bool replace) {
  if (replace) {
    if (::rename(name_.c_str(), target.c_str()) != 0) {
      fail_to_write(target, errno);
    }
    renamed_ = true;
    return true;
  }
  // Another process may have created the target meanwhile.
  if (::renameat2(AT_FDCWD, name_.c_str(), AT_FDCWD, target.c_str(), RENAME_NOREPLACE) == 0) {
    renamed_ = true;
    return true;
  }
  // File systems without RENAME_NOREPLACE have link().
  if (errno == EINVAL && ::link(name_.c_str(), target.c_str()) == 0) {
    return true;
  }
  if (errno != EEXIST) {
    fail_to_write(target, errno);
  }
  return false;
}

void write_atomically(const fs::path& path, const std::string& text, mode_t mode) {
  AtomicFile file(path, mode);
  file.write(text);
  file.rename_to(path, /*replace=*/true);
}

}  // namespace lockstep
