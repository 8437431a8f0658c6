// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero/bucket/low_precision_policy.h"

namespace lockstep::zero {

bool is_trained_in_16_bits(const at::Tensor& parameter) {
  const at::ScalarType own = parameter.scalar_type();
  return parameter.requires_grad() && (own == at::kHalf || own == at::kBFloat16);
}

at::ScalarType update_dtype(
    const at::Tensor& parameter, const LowPrecisionPolicy& low_precision_policy) {
  return low_precision_policy.fp32_masters && is_trained_in_16_bits(parameter)
             ? at::kFloat
             : parameter.scalar_type();
}

}  // namespace lockstep::zero
