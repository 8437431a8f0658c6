// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/host/cores.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <sched.h>
#include <thread>

namespace lockstep {

std::vector<int> available_core_ids() {
  std::vector<int> ids;
  // The mask must be as large as the kernel's, whose size is unknown.
  for (size_t bits = 1024; bits <= (size_t{1} << 20) && ids.empty(); bits *= 2) {
    std::vector<unsigned char> mask(bits / 8);
    auto* set = reinterpret_cast<cpu_set_t*>(mask.data());
    if (::sched_getaffinity(0, mask.size(), set) == 0) {
      for (size_t id = 0; id < bits; ++id) {
        if (CPU_ISSET_S(id, mask.size(), set)) {
          ids.push_back(static_cast<int>(id));
        }
      }
    } else if (errno != EINVAL) {
      break;
    }
  }
  return ids;
}

int available_cores() {
  const size_t allowed = available_core_ids().size();
  return std::max(1, static_cast<int>(allowed > 0 ? allowed : std::thread::hardware_concurrency()));
}

}  // namespace lockstep
