// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

#include "lockstep/base/enum_words.h"

namespace lockstep {

/// Selects the memory for offloaded tensors.
enum class OffloadDevice {
  kNone,  ///< On the device.
  kCpu,   ///< In the host's memory.
  kNvme   ///< In files, best on a fast disk that nothing else uses.
};

template <>
inline constexpr std::array<std::string_view, 3> kWordsOf<OffloadDevice> = {"none", "cpu", "nvme"};

/// Offloads the optimizer's state and its update to the host, unless kNone. The names are
/// DeepSpeed's.
struct OffloadOptimizer {
  OffloadDevice device = OffloadDevice::kNone;
  /// kNvme: an existing folder. Each rank has one unnamed file in it, which is removed with the
  /// process.
  std::filesystem::path nvme_path = {};
  /// Uses pinned memory for copies between a GPU and the host. They are twice as fast, but pinned
  /// memory cannot be swapped out. No effect without a GPU.
  bool pin_memory = true;
  /// The part of the state's elements that is offloaded, in complete buckets: above 0, at most 1.
  double ratio = 1;
  /// kNvme: buffers in memory, each as large as the largest bucket's shard of a field. A bucket
  /// needs one for each field in a file, so that is the minimum. Twice as many let an update
  /// overlap with reading the next bucket or writing the previous one, three times as many with
  /// both.
  int64_t buffer_count = 6;
  /// kNvme: reads the next buckets during an update. None: true.
  std::optional<bool> pipeline_read = std::nullopt;
  /// kNvme: writes the last buckets during an update. None: true.
  std::optional<bool> pipeline_write = std::nullopt;
  /// kCpu: the host updates a bucket as soon as its gradient is complete, while backward continues.
  /// It updates copies, so state and parameters take twice the host memory. If an input has changed
  /// when the optimizer steps (clipping, another learning rate, a write to parameters), the bucket
  /// is updated again; the results are the same. Do not write through `data()`, which autograd does
  /// not see, between backward and step. With fp16 all updates wait for the step.
  bool super_offload = false;
};

/// Stores each rank's shard of stage 3 parameters off the device between uses, unless kNone.
struct OffloadParam {
  OffloadDevice device = OffloadDevice::kNone;
  /// kNvme: as for OffloadOptimizer; may be the same folder.
  std::filesystem::path nvme_path = {};
  /// For kCpu, with a GPU.
  bool pin_memory = true;
  /// kNvme: elements of this rank's shard that stay in memory, in complete buckets.
  int64_t max_in_cpu = 1'000'000'000;
};

}  // namespace lockstep
