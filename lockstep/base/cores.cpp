// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/cores.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <sched.h>
#include <thread>
#include <vector>

namespace lockstep {

int available_cores() {
  // The mask must be as large as the kernel's, which is not known beforehand.
  for (int bits = 1024; bits <= (1 << 20); bits *= 2) {
    std::vector<unsigned char> mask(static_cast<size_t>(bits) / 8);
    auto* set = reinterpret_cast<cpu_set_t*>(mask.data());
    if (sched_getaffinity(0, mask.size(), set) == 0) {
      return std::max(1, CPU_COUNT_S(mask.size(), set));
    }
    if (errno != EINVAL) {
      break;
    }
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace lockstep
