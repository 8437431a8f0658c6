// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/offload/file_tensor.h"
#include "lockstep/offload/serial_executor.h"

namespace lockstep::offload {

struct TensorSwapperOptions {
  int64_t slots = 1;         ///< Sets in memory at a time. At least 1.
  bool read_ahead = true;    ///< Read the next sets during the work on one, if there are slots.
  bool write_behind = true;  ///< Write the last sets during the work on one.
};

/// Reads sets of FileTensors into memory one after the other, processes them, and writes them back.
/// With two slots reading the next or writing the last set overlaps the work; with three both do.
///
/// Uses pread and pwrite on two threads; docs/dependencies.md says why not io_uring. Memory:
/// `slots` times the largest set, kept.
class TensorSwapper {
 public:
  explicit TensorSwapper(const TensorSwapperOptions& options);
  ~TensorSwapper();
  TensorSwapper(const TensorSwapper&) = delete;
  TensorSwapper& operator=(const TensorSwapper&) = delete;

  using Set = std::vector<FileTensor*>;
  /// Calls `work(i)` for each set in order, with its tensors in memory. All data is in the files at
  /// return. Rethrows an exception of `work` or the disk, after all running operations have ended.
  void run(const std::vector<Set>& sets, const std::function<void(size_t index)>& work);

  /// Returns the bytes of all slots.
  int64_t memory_bytes() const;
  /// Returns the bytes since construction.
  int64_t bytes_read() const { return bytes_read_; }
  int64_t bytes_written() const { return bytes_written_; }

 private:
  class Run;

  TensorSwapperOptions options_;
  std::vector<at::Tensor> slots_;
  std::atomic<int64_t> bytes_read_ = 0;
  std::atomic<int64_t> bytes_written_ = 0;
  // Last, so that they are destroyed first.
  SerialExecutor reader_;
  SerialExecutor writer_;
};

}  // namespace lockstep::offload
