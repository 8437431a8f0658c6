// SPDX-License-Identifier: Apache-2.0
// How the values of a bucket come together, and go back to the ranks' own parts.
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <c10/core/ScalarType.h>

#include "lockstep/zero/quantize/quantize.h"
#include "lockstep/zero/bucket/sharded_bucket.h"

namespace lockstep::zero {

at::Tensor ShardedBucket::shard_here() {
  if (!store_->is_away()) {
    return shard_;
  }
  if (rounded_masters_.defined()) {
    if (!rounded_is_current_) {
      store_->load(rounded_masters_);
      rounded_is_current_ = true;
    }
    return rounded_masters_;
  }
  at::Tensor here = at::empty(shard_.sizes(), options_);
  store_->load(here);
  return here;
}

at::Tensor ShardedBucket::rounded_shard() {
  return kept_.defined() ? kept_ : rounded(shard_here());
}

at::Tensor ShardedBucket::rounded(const at::Tensor& values) const {
  if (narrow_) {
    return values.to(*narrow_);
  }
  at::Tensor wire = at::empty({1, wire_bytes(values.numel(), Bits::k8)}, options_.dtype(at::kByte));
  quantize(values, Bits::k8, wire[0]);
  return wire;
}

at::Tensor ShardedBucket::unrounded(const at::Tensor& wire) const {
  if (narrow_) {
    return wire.to(c10::typeMetaToScalarType(options_.dtype()));
  }
  at::Tensor values = at::empty({shard_numel()}, options_);
  dequantize_mean(wire, Bits::k8, values);
  return values;
}

Pending ShardedBucket::start_gather(Source source) {
  source_ = source;
  if (kept_.defined()) {
    shard_.reset();  // All that was to be packed is.
  }
  if (source == Source::kSecondary) {
    Group& close = comm_.plus_plus.close;
    return narrow_ ? close.all_gather(secondary_) : close.all_gather_into(values(), secondary_);
  }
  if (is_rounded()) {
    return comm_.parameters.all_gather(rounded_shard());
  }
  if (rounded_masters_.defined()) {
    return comm_.parameters.all_gather_into(values(), shard_here());
  }
  if (store_ && store_->is_away()) {
    store_->load(own_part());
    return comm_.parameters.all_gather_into(values(), own_part());
  }
  return comm_.parameters.all_gather_into(values(), shard_);
}

void ShardedBucket::finish_gather(const at::Tensor& came) {
  if (narrow_ && source_ != Source::kExact) {
    values().copy_(came);
  } else if (is_rounded() && source_ != Source::kSecondary) {
    for (int64_t rank = 0; rank < came.size(0); ++rank) {
      dequantize_mean(
          came.narrow(0, rank, 1),
          Bits::k8,
          values().narrow(0, rank * shard_numel(), shard_numel()));
    }
  }
  if (source_ == Source::kShards && keeps_secondary()) {
    const Group& close = comm_.plus_plus.close;
    const int64_t part = length_ / close.size();
    const at::Tensor own = values().narrow(0, close.rank() * part, part);
    secondary_ = narrow_ ? rounded(own) : own.clone();
  }
}

void ShardedBucket::write_back() {
  at::Tensor own = own_part();
  if (is_rounded()) {
    const at::Tensor came = unrounded(rounded_shard());
    const at::Tensor unwritten = own.eq(came).logical_or_(own.isnan().logical_and_(came.isnan()));
    if (comm_.kept_in_8_bits) {
      if (!unwritten.all().item<bool>()) {
        kept_ = rounded(own);
      }
      return;
    }
    own = at::where(unwritten, shard_here(), own);
  }
  store_->store(own);
  rounded_is_current_ = false;
}

}  // namespace lockstep::zero
