// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/system_error.h"

#include <cerrno>
#include <optional>
#include <sys/resource.h>
#include <system_error>

#include <fmt/format.h>

namespace lockstep {
namespace {

std::optional<rlim_t> soft_limit(decltype(RLIMIT_NOFILE) resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return std::nullopt;
  }
  return limit.rlim_cur;
}

}  // namespace

std::string system_error_text(int error) {
  std::string text = std::generic_category().message(error);
  if (error == EMFILE) {
    if (const auto files = soft_limit(RLIMIT_NOFILE)) {
      return fmt::format(
          "{}; the limit of this process is {}; raise it with `ulimit -n`", text, *files);
    }
  }
  if (error == EFBIG) {
    if (const auto bytes = soft_limit(RLIMIT_FSIZE)) {
      return fmt::format(
          "{}; the limit of this process is {} bytes; raise it with `ulimit -f`", text, *bytes);
    }
  }
  return text;
}

}  // namespace lockstep
