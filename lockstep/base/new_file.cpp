// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/new_file.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_to_write(const fs::path& path, int error) {
  throw Error(path.native(), fmt::format("cannot be written; {}", std::strerror(error)));
}

}  // namespace

NewFile::NewFile(const fs::path& target) : name_(target.native() + ".tmp-XXXXXX") {
  // mkostemp creates it with mode 0600.
  file_.reset(::mkostemp(name_.data(), O_CLOEXEC));
  if (!file_.is_open()) {
    fail_to_write(target, errno);
  }
}

NewFile::~NewFile() {
  if (!renamed_) {
    ::unlink(name_.c_str());
  }
}

void NewFile::write(const std::string& text) const {
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

bool NewFile::rename_to(const fs::path& target, bool replace) {
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

}  // namespace lockstep
