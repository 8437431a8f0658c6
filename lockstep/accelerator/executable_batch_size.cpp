// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/executable_batch_size.h"

#include <malloc.h>
#include <new>
#include <string_view>

#include <fmt/format.h>

#include <ATen/DeviceAccelerator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"

namespace lockstep {

bool is_out_of_memory(const std::exception& failure) {
  if (dynamic_cast<const std::bad_alloc*>(&failure) != nullptr ||
      dynamic_cast<const c10::OutOfMemoryError*>(&failure) != nullptr) {
    return true;
  }
  // The host allocator throws a plain c10::Error, which only its text tells from any other.
  const auto* error = dynamic_cast<const c10::Error*>(&failure);
  return error != nullptr &&
         std::string_view(error->what_without_backtrace()).find("DefaultCPUAllocator: ") !=
             std::string_view::npos;
}

void release_cached_memory() {
  const auto device = at::accelerator::getAccelerator();
  // torch asserts that there is a cache; a device of another library may have none.
  if (device && dynamic_cast<const c10::DeviceAllocator*>(c10::GetAllocator(*device)) != nullptr) {
    at::accelerator::emptyCache();
  }
  malloc_trim(0);
}

namespace detail {

void no_executable_batch_size() {
  throw Error(
      "find_executable_batch_size",
      "memory ran out even for the smallest batch; no executable batch size exists");
}

int64_t checked_batch_size(int64_t next, int64_t was) {
  if (next < 1 || next >= was) {
    throw ConfigError(
        "find_executable_batch_size",
        fmt::format("expected a batch size of 1 to {}; got {}", was - 1, next));
  }
  return next;
}

void report_smaller_batch_size(int64_t was, int64_t next) {
  log_info(fmt::format("out of memory with a batch of {}; trying {}", was, next));
}

}  // namespace detail
}  // namespace lockstep
