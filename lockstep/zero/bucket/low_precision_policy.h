// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::zero {

/// The treatment of trained parameters of fp16 and bf16.
struct LowPrecisionPolicy {
  /// True: updates act on fp32 masters, and the parameters are the rounded masters. False: the
  /// parameters are updated directly, with gradients of their dtype.
  bool fp32_masters = true;
  /// With masters: a rank's gradients of several backward passes accumulate in fp32 before
  /// averaging. False: in their dtype, as autograd does.
  bool fp32_gradients = false;
  /// With masters: gradients are sent in fp32. False: in their dtype.
  bool fp32_comm = false;
  /// With masters: averages accumulate in their dtype, rounded each time. False: in fp32.
  bool rounded_sums = false;
};

/// Returns whether `parameter` is trained and fp16 or bf16.
bool is_trained_in_16_bits(const at::Tensor& parameter);
/// Returns the dtype of a parameter's update: fp32 with masters, else its own dtype.
at::ScalarType update_dtype(
    const at::Tensor& parameter, const LowPrecisionPolicy& low_precision_policy = {});

}  // namespace lockstep::zero
