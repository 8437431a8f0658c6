// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero/bucket/bucket_storage.h"

#include <utility>

#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"

namespace lockstep::zero {
namespace {

constexpr const char* kFreedMessage =
    "[zero] this parameter's values are not in memory: ZeRO stage 3 shards them, and only torch "
    "operations gather them; its memory was read directly (data_ptr, accessor, serialization); "
    "read it within Accelerator::with_gathered_parameters, or save with save_model or save_state";

}  // namespace

void QuantizedShard::write(int64_t begin, const at::Tensor& values) {
  // Parameters share blocks. Rounding each write separately would use the scale of values that the
  // next write replaces.
  if (!exact_.defined()) {
    exact_ = dequantize();
  }
  const at::Tensor place = exact_.narrow(0, begin, values.numel());
  // Values that were rounded already stay bit-exact.
  if (!place.equal(values)) {
    place.copy_(values);
    bytes_ = format_.encode(exact_);
  }
}

BucketStorage create_storage(
    const at::Tensor& parameter,
    const BucketLayout& layout,
    const BucketCommFormat& format,
    const at::TensorOptions& options,
    ParamPlacement placement,
    ShardPlaces* places,
    const LowPrecisionPolicy& low_precision_policy) {
  const c10::AutoGradMode no_grad(false);
  const Group& group = format.comm().parameter_group;
  const at::ScalarType updated_in = update_dtype(parameter, low_precision_policy);
  const auto make_store = [&] {
    ShardPlaces::Place place =
        places != nullptr ? places->next(layout.shard_numel) : ShardPlaces::Place();
    // A replicated bucket has the rounded values.
    place.keep_rounded_on_device =
        place.keep_rounded_on_device && placement == ParamPlacement::kSharded;
    return ShardStore(group, layout.shard_numel, options, updated_in, place);
  };
  if (placement == ParamPlacement::kSharded) {
    auto full = std::make_unique<FlatParamBuffer>(layout.numel, options, kFreedMessage);
    if (format.comm().quantized_storage) {
      return ShardedQuantized{std::move(full), QuantizedShard(format)};
    }
    return Sharded{std::move(full), make_store()};
  }
  LOCKSTEP_ASSERT(!format.comm().quantized_storage, "only sharded parameters are stored in 8 bits");
  at::Tensor full = group.empty({layout.numel}, options).zero_();
  if (updated_in != parameter.scalar_type()) {
    return ReplicatedWithMasters{std::move(full), make_store()};
  }
  return Replicated{std::move(full)};
}

FlatParamBuffer* buffer_of(const BucketStorage& storage) {
  if (const auto* sharded = std::get_if<Sharded>(&storage)) {
    return sharded->full.get();
  }
  const auto* quantized = std::get_if<ShardedQuantized>(&storage);
  return quantized == nullptr ? nullptr : quantized->full.get();
}

const ShardStore* store_of(const BucketStorage& storage) {
  if (const auto* sharded = std::get_if<Sharded>(&storage)) {
    return &sharded->shard;
  }
  const auto* replicated = std::get_if<ReplicatedWithMasters>(&storage);
  return replicated == nullptr ? nullptr : &replicated->masters;
}

}  // namespace lockstep::zero
