// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace lockstep {

/// While it lives, operations on `device_type` run in the dtype that autocast thinks right for
/// them: matrix products and convolutions in `dtype`, losses and reductions in fp32.
///
/// Scopes nest, and the innermost one counts, so one with `enabled` false is an exception within
/// another. The end of a scope restores what was before it, also when an exception passes; the end
/// of the outermost one frees the cast weights that are kept for the scope (`cache_enabled`), as
/// these go stale when an optimizer steps: so end it before the step. A nested scope that switches
/// autocast on or changes its dtype frees them when it begins and when it ends. Run backward
/// outside of it; gradients get the parameters' dtype by themselves.
///
/// fp16 on the CPU is real fp16: libtorch has CPU kernels for matrix products, convolutions and
/// attention, forward and backward. What has none throws in the forward and is never computed in
/// fp32 instead: an LSTM, on CPUs whose oneDNN has no fp16 one. Run that in bf16, or in a nested
/// scope with `enabled` false; the first such exception to pass says so in the log. Autocast
/// decides by operation: what is on none of libtorch's lists (GRU, LSTMCell, Bilinear, addmv on the
/// CPU) computes in the dtype of its inputs, which for fp32 weights is fp32, as in Python.
///
/// The state belongs to the thread: a new thread starts without autocast, and the scope must end
/// on the thread that began it. The cast weights that are kept belong to the process, and libtorch
/// does not tell their dtypes apart: threads that run with the same weights at the same time must
/// all use one dtype, or pass `cache_enabled` false.
class Autocast {
 public:
  /// ConfigError for a device other than CPU or CUDA, a CUDA that is not there, and a dtype other
  /// than fp16 and bf16; when not `enabled` the device and dtype are not looked at.
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
  bool hints_at_fp16_;
  int exceptions_at_start_;
  bool was_enabled_;
  c10::ScalarType old_dtype_;
  bool recasts_;  ///< What is kept of weights has another dtype than within.
  bool was_cache_enabled_;
};

}  // namespace lockstep
