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
  int64_t slots = 1;         ///< Sets that are in memory at a time.
  bool read_ahead = true;    ///< Read the next sets, as far as there are slots, while one is used.
  bool write_behind = true;  ///< Write the last ones while one is used.
};

/// Takes sets of FileTensors through memory, one after the other: each is read from its file,
/// worked on, and written again. With two slots reading the next or writing the last goes beside
/// the work, with three both.
///
/// Plain pread and pwrite by two threads; docs/dependencies.md says why no io_uring. Memory:
/// `slots` times the largest set, kept. Thread safety: none.
class TensorSwapper {
 public:
  /// `slots` must be at least 1.
  explicit TensorSwapper(const TensorSwapperOptions& options);
  ~TensorSwapper();
  TensorSwapper(const TensorSwapper&) = delete;
  TensorSwapper& operator=(const TensorSwapper&) = delete;

  using Set = std::vector<FileTensor*>;
  /// Calls `work(i)` for each set in order, with its tensors in memory. All is in the files when it
  /// returns. What work or the disk throws is thrown, once nothing is under way any more.
  void run(const std::vector<Set>& sets, const std::function<void(size_t index)>& work);

  /// Of the slots.
  int64_t memory_bytes() const;
  /// Since construction.
  int64_t bytes_read() const { return bytes_read_; }
  int64_t bytes_written() const { return bytes_written_; }

 private:
  class Run;

  TensorSwapperOptions options_;
  std::vector<at::Tensor> slots_;
  std::atomic<int64_t> bytes_read_ = 0;
  std::atomic<int64_t> bytes_written_ = 0;
  // Last, so that they end first.
  SerialExecutor reader_;
  SerialExecutor writer_;
};

}  // namespace lockstep::offload
