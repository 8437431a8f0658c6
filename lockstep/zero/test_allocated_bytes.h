// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <utility>

#include <c10/core/Allocator.h>

namespace lockstep {

/// Bytes that the watched threads have allocated and that are not freed.
class AllocatedBytes final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(
      void* memory,
      int64_t size,
      size_t /*allocated*/,
      size_t /*reserved*/,
      c10::Device /*device*/) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (size > 0) {
      sizes_[memory] = size;
      bytes_ += size;
      most_ = std::max(most_, bytes_);
    } else if (const auto found = sizes_.find(memory); found != sizes_.end()) {
      bytes_ -= found->second;
      sizes_.erase(found);
    }
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t bytes() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return bytes_;
  }
  /// More than there are now, at any time since it was last called.
  int64_t take_most() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(most_, bytes_) - bytes_;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<void*, int64_t> sizes_;
  int64_t bytes_ = 0;
  int64_t most_ = 0;
};

}  // namespace lockstep
