// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace lockstep {

/// A scope of mixed precision: torch.autocast. libtorch's lists decide the dtype of operations on
/// `device_type`: matrix products and convolutions run in `dtype`, losses and reductions in fp32.
///
/// Scopes nest, and the innermost one applies. A scope with `enabled` false is an exception within
/// another. The end of a scope restores the previous state, also after an exception. Cast weights
/// are cached until the end of the outermost scope (`cache_enabled`). They become stale when an
/// optimizer steps, so end the scope before the step. A nested scope that enables autocast or
/// changes its dtype clears the cache when it begins and when it ends. Run backward outside of the
/// scope; gradients have the parameters' dtype.
///
/// fp16 on the CPU is real fp16: libtorch has CPU kernels for matrix products, convolutions and
/// attention, forward and backward. An operation without one, such as an LSTM on CPUs whose oneDNN
/// has none, throws in the forward; it is never computed in fp32 instead. Run it in bf16, or in a
/// nested scope with `enabled` false; a log message says so at the first such exception. Operations
/// on none of libtorch's lists (GRU, LSTMCell, Bilinear, addmv on the CPU) compute in the dtype of
/// their inputs, which for fp32 weights is fp32, as in Python.
///
/// The state belongs to the thread: a new thread starts without autocast, and a scope must end on
/// the thread that began it. The cache belongs to the process, and libtorch does not distinguish
/// dtypes in it. Threads that use the same weights at the same time must all use one dtype, or pass
/// `cache_enabled` false.
class [[nodiscard]] Autocast {
 public:
  /// Throws ConfigError for a device other than CPU or CUDA, a missing CUDA device, and a dtype
  /// other than fp16 and bf16. If not `enabled`, only the type of the device is checked.
  Autocast(
      c10::DeviceType device_type,
      c10::ScalarType dtype,
      bool enabled = true,
      bool cache_enabled = true);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  c10::DeviceType device_type_;
  bool is_cpu_fp16_;
  int exceptions_at_start_;
  bool was_enabled_;
  c10::ScalarType old_dtype_;
  bool changes_dtype_;  ///< Cached weights of the outer scope have another dtype.
  bool was_cache_enabled_;
};

}  // namespace lockstep
