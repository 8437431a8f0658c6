// SPDX-License-Identifier: Apache-2.0
#include "lockstep/sync/comm_hook/message.h"

#include <exception>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/ScalarType.h>

namespace lockstep {

at::ScalarType wire_type(CommHookType cast, at::ScalarType own) {
  if (cast == CommHookType::kNone || c10::isReducedFloatingType(own)) {
    return own;
  }
  return cast == CommHookType::kFp16 ? at::kHalf : at::kBFloat16;
}

Message::Message(at::Tensor values, at::ScalarType wire_type)
    : values_(std::move(values)),
      wire_(
          values_.scalar_type() == wire_type
              ? values_
              : at::empty(values_.sizes(), values_.options().dtype(wire_type))) {}

void Message::pack(const Group& group) {
  if (is_cast()) {
    at::mul_out(wire_, values_, at::scalar_tensor(1.0 / group.size(), at::kDouble));
  }
}

void Message::send(Group& group) {
  pending_ = group.all_reduce(wire_, is_cast() ? ReduceOp::kSum : ReduceOp::kAvg);
}

void Message::finish() {
  pending_->wait();
  pending_.reset();
  if (is_cast()) {
    values_.copy_(wire_);
  }
}

void Message::abandon(bool wait) noexcept {
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
