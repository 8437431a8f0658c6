// SPDX-License-Identifier: Apache-2.0
#include "lockstep/sync/comm_hook/averaging_all_reduce.h"

#include <exception>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/ScalarType.h>

namespace lockstep {

at::ScalarType hook_comm_dtype(CommHookType cast, at::ScalarType own) {
  if (cast == CommHookType::kNone || c10::isReducedFloatingType(own)) {
    return own;
  }
  return cast == CommHookType::kFp16 ? at::kHalf : at::kBFloat16;
}

AveragingAllReduce::AveragingAllReduce(at::Tensor values, at::ScalarType comm_dtype)
    : values_(std::move(values)),
      sent_(
          values_.scalar_type() == comm_dtype
              ? values_
              : at::empty(values_.sizes(), values_.options().dtype(comm_dtype))) {}

void AveragingAllReduce::pack(const Group& group) {
  if (is_cast()) {
    at::mul_out(sent_, values_, at::scalar_tensor(1.0 / group.size(), at::kDouble));
  }
}

void AveragingAllReduce::send(Group& group) {
  pending_ = group.all_reduce(sent_, is_cast() ? ReduceOp::kSum : ReduceOp::kAvg);
}

void AveragingAllReduce::finish() {
  pending_->wait();
  pending_.reset();
  if (is_cast()) {
    values_.copy_(sent_);
  }
}

void AveragingAllReduce::abandon(bool wait) noexcept {
  if (pending_ && wait) {
    try {
      pending_->wait();
    } catch (const std::exception&) {
      // The caller is about to report the first error.
    }
  }
  pending_.reset();
}

}  // namespace lockstep
