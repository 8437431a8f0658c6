// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>

#include "lockstep/base/offload_device.h"

namespace lockstep {

/// Where the optimizer's state lies, and where the update is done: on the host, unless kNone. The
/// names are DeepSpeed's.
struct OffloadOptimizer {
  OffloadDevice device = OffloadDevice::kNone;
  /// kNvme: a folder that is there. Each rank has one file in it, which has no name, and is gone
  /// with the process however that ends.
  std::filesystem::path nvme_path = {};
  /// What travels between a GPU and the host does so by way of pinned memory, which is twice as
  /// fast, and cannot be swapped out. Nothing travels where there is no GPU.
  bool pin_memory = true;
  /// The part of the state's elements that is offloaded, in whole buckets: above 0, at most 1.
  double ratio = 1;
  /// kNvme: buffers in memory, each as large as the largest bucket's part of a field. A bucket
  /// takes one for each field that lies in a file, so that many at least; twice that lets the next
  /// bucket be read, or the one before be written, while one is updated; three times that both.
  int64_t buffer_count = 6;
  /// kNvme: read the next buckets while one is updated.
  bool pipeline_read = true;
  /// kNvme: write the last buckets while one is updated.
  bool pipeline_write = true;
  /// kCpu: the host begins to update a bucket as soon as its gradient is complete, while backward
  /// goes on, on copies: state, and parameters, once more in its memory. What is not as it was then
  /// when the optimizer steps (clipped since, another learning rate, parameters written to) is
  /// updated anew; the numbers are the same. Writes by way of `data()`, which autograd does not
  /// see, must not come between backward and step. With fp16 all waits for the step.
  bool super_offload = false;
};

/// Where each rank's part of the parameters of stage 3 lies between uses.
struct OffloadParam {
  OffloadDevice device = OffloadDevice::kNone;
  /// kNvme: as OffloadOptimizer's; may be the same.
  std::filesystem::path nvme_path = {};
  /// Of kCpu, where there is a GPU.
  bool pin_memory = true;
  /// kNvme: so many elements of this rank's part stay in memory, in whole buckets.
  int64_t max_in_cpu = 1'000'000'000;
};

}  // namespace lockstep
