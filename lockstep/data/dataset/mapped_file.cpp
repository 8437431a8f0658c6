// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/dataset/mapped_file.h"

#include <cerrno>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <system_error>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::data {
namespace {

[[noreturn]] void fail(const std::string& path, const char* what) {
  throw ConfigError(path, fmt::format("{}; {}", what, std::generic_category().message(errno)));
}

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) {
    fail(path, "cannot be opened");
  }
  struct stat status {};
  if (fstat(file.get(), &status) != 0) {
    fail(path, "cannot be examined");
  }
  if (!S_ISREG(status.st_mode)) {
    throw ConfigError(path, "cannot be mapped; expected a regular file");
  }
  size_ = static_cast<size_t>(status.st_size);
  if (size_ == 0) {
    return;  // mmap refuses a length of zero.
  }
  void* mapping = mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.get(), 0);
  if (mapping == MAP_FAILED) {
    fail(path, "cannot be mapped");
  }
  data_ = static_cast<std::byte*>(mapping);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    munmap(data_, size_);
  }
}

}  // namespace lockstep::data
