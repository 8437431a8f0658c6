// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/system_error.h"

#include <cerrno>
#include <sys/resource.h>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

/// RAII scope: sets the soft limit of a resource.
class SoftLimit {
 public:
  SoftLimit(decltype(RLIMIT_NOFILE) resource, rlim_t value) : resource_(resource) {
    ::getrlimit(resource_, &before_);
    const rlimit limit{.rlim_cur = value, .rlim_max = before_.rlim_max};
    ::setrlimit(resource_, &limit);
  }
  ~SoftLimit() { ::setrlimit(resource_, &before_); }
  SoftLimit(const SoftLimit&) = delete;
  SoftLimit& operator=(const SoftLimit&) = delete;

 private:
  decltype(RLIMIT_NOFILE) resource_;
  rlimit before_{};
};

TEST(SystemErrorText, NamesTheLimitThatWasMet) {
  std::string files;
  std::string bytes;
  {
    const SoftLimit of_files(RLIMIT_NOFILE, 57);
    const SoftLimit of_bytes(RLIMIT_FSIZE, 10240);
    files = system_error_text(EMFILE);
    bytes = system_error_text(EFBIG);
  }
  EXPECT_EQ(
      files, "Too many open files; the limit of this process is 57; raise it with `ulimit -n`");
  EXPECT_EQ(
      bytes, "File too large; the limit of this process is 10240 bytes; raise it with `ulimit -f`");
}

TEST(SystemErrorText, IsThatOfTheSystemOtherwise) {
  EXPECT_EQ(system_error_text(ENOENT), "No such file or directory");
}

}  // namespace
}  // namespace lockstep
