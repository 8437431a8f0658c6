// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/memory/resident_bytes.h"

#include <array>
#include <cstdlib>
#include <fcntl.h>
#include <unistd.h>

#include "lockstep/base/unique_fd.h"

namespace lockstep {

int64_t resident_bytes() {
  static const UniqueFd file(::open("/proc/self/statm", O_RDONLY | O_CLOEXEC));
  std::array<char, 64> text{};
  if (::pread(file.get(), text.data(), text.size() - 1, 0) <= 0) {
    return 0;
  }
  char* second = nullptr;  // The first number is the size of the address space.
  std::strtoll(text.data(), &second, 10);
  return std::strtoll(second, nullptr, 10) * ::sysconf(_SC_PAGESIZE);
}

}  // namespace lockstep
