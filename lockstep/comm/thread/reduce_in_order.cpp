// SPDX-License-Identifier: Apache-2.0
#include <ATen/Functions.h>

#include "lockstep/comm/thread/reference_collectives.h"

namespace lockstep::comm {
namespace {

at::ScalarType accumulate_type(at::ScalarType type) {
  return type == at::kHalf || type == at::kBFloat16 ? at::kFloat : type;
}

}  // namespace

at::Tensor reduce_in_order(const std::vector<at::Tensor>& inputs, ReduceOp op) {
  const at::ScalarType type = accumulate_type(inputs[0].scalar_type());
  at::Tensor total = inputs[0].to(type, /*non_blocking=*/false, /*copy=*/true);
  for (size_t i = 1; i < inputs.size(); ++i) {
    const at::Tensor next = inputs[i].to(type);
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kAvg:
        total.add_(next);
        break;
      case ReduceOp::kMin:
        total = at::minimum(total, next);
        break;
      case ReduceOp::kMax:
        total = at::maximum(total, next);
        break;
      case ReduceOp::kProduct:
        total.mul_(next);
        break;
    }
  }
  if (op == ReduceOp::kAvg) {
    total.div_(static_cast<double>(inputs.size()));
  }
  return total;
}

}  // namespace lockstep::comm
