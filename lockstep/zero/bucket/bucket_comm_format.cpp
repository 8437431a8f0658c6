// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero/bucket/bucket_comm_format.h"

#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>

#include "lockstep/zero/quantize/quantize.h"

namespace lockstep::zero {

BucketCommFormat::BucketCommFormat(
    BucketComm comm, const flat::BucketPlan& plan, const at::TensorOptions& options, int64_t numel)
    : comm_(std::move(comm)), options_(options), numel_(numel) {
  if (comm_.parameter_group.size() > 1 && !comm_.quantized_storage) {
    gradient_dtype_ = plan.comm_dtype;
  }
  if (!comm_.comm_dtype_for_gradients_only) {
    dtype_ = gradient_dtype_;
  }
}

at::Tensor BucketCommFormat::encode(const at::Tensor& shard) const {
  if (dtype_) {
    return shard.to(*dtype_);
  }
  at::Tensor bytes = at::empty({1, wire_bytes(shard.numel(), Bits::k8)}, options_.dtype(at::kByte));
  quantize(shard, Bits::k8, bytes[0]);
  return bytes;
}

at::Tensor BucketCommFormat::decode(const at::Tensor& encoded) const {
  if (dtype_) {
    return encoded.to(c10::typeMetaToScalarType(options_.dtype()));
  }
  at::Tensor values = at::empty({shard_numel()}, options_);
  dequantize_mean(encoded, Bits::k8, values);
  return values;
}

Pending BucketCommFormat::gather_secondary(const at::Tensor& full) {
  Group& hpz = comm_.plus_plus.hpz;
  return dtype_ ? hpz.all_gather(secondary_) : hpz.all_gather_into(full, secondary_);
}

void BucketCommFormat::finish_gather(const at::Tensor& received, const at::Tensor& full) {
  if (dtype_ && source_ != Source::kExact) {
    full.copy_(received);
  } else if (is_rounded() && source_ != Source::kSecondary) {
    for (int64_t rank = 0; rank < received.size(0); ++rank) {
      dequantize_mean(
          received.narrow(0, rank, 1),
          Bits::k8,
          full.narrow(0, rank * shard_numel(), shard_numel()));
    }
  }
  if (source_ == Source::kShards && keeps_secondary()) {
    const Group& hpz = comm_.plus_plus.hpz;
    const int64_t part = numel_ / hpz.size();
    const at::Tensor own = full.narrow(0, hpz.rank() * part, part);
    secondary_ = dtype_ ? encode(own) : own.clone();
  }
}

}  // namespace lockstep::zero
