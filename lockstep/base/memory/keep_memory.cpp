// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/memory/keep_memory.h"

#include <malloc.h>

#include "lockstep/base/env.h"

namespace lockstep {

void keep_freed_memory() {
  const Environment environment = Environment::process();
  if (environment.text("MALLOC_MMAP_THRESHOLD_") || environment.text("MALLOC_TRIM_THRESHOLD_") ||
      environment.text("GLIBC_TUNABLES").value_or("").find("glibc.malloc.") != std::string::npos) {
    return;
  }
  constexpr int kLargestThatMallocAllows = 32 << 20;
  constexpr int kNever = -1;
  ::mallopt(M_MMAP_THRESHOLD, kLargestThatMallocAllows);
  ::mallopt(M_TRIM_THRESHOLD, kNever);
}

void release_freed_memory() {
  ::malloc_trim(0);
}

}  // namespace lockstep
