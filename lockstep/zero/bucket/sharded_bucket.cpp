// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero/bucket/sharded_bucket.h"

#include <utility>

#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "lockstep/comm/tensor/divided_mark.h"
#include "lockstep/comm/tensor/sharded_param.h"

namespace lockstep::zero {
namespace {

/// Makes one visitor of several lambdas.
template <typename... Lambdas>
struct Visitor : Lambdas... {
  using Lambdas::operator()...;
};
// clang 14 deduces no aggregate's arguments.
template <typename... Lambdas>
Visitor(Lambdas...) -> Visitor<Lambdas...>;

/// Returns, by element, whether `own` still has the value that a gather gave: `received`.
at::Tensor is_unwritten(const at::Tensor& own, const at::Tensor& received) {
  return own.eq(received).logical_or_(own.isnan().logical_and_(received.isnan()));
}

}  // namespace

ShardedBucket::ShardedBucket(
    const flat::BucketPlan& plan,
    const std::vector<at::Tensor>& parameters,
    BucketComm comm,
    ParamPlacement placement,
    ShardPlaces* places,
    const LowPrecisionPolicy& low_precision_policy)
    : layout_(plan, comm.parameter_group),
      options_(parameters[plan.entries[0].parameter].detach().options()),
      format_(std::move(comm), plan, options_, layout_.numel),
      storage_(create_storage(
          parameters[plan.entries[0].parameter],
          layout_,
          format_,
          options_,
          placement,
          places,
          low_precision_policy)) {
  const c10::AutoGradMode no_grad(false);
  shard_ = initial_shard();
  for (const flat::BucketEntry& entry : plan.entries) {
    add_parameter(parameters[entry.parameter]);
  }
  if (shard_file()) {
    shard_file()->release_pages();
  }
  if (auto* quantized = std::get_if<ShardedQuantized>(&storage_)) {
    quantized->shard.store(std::exchange(shard_, {}));
  } else if (parameters[plan.entries[0].parameter].requires_grad()) {
    gradients_ =
        std::make_unique<BucketGradients>(layout_, format_, shard_, options_, low_precision_policy);
  }
}

at::Tensor ShardedBucket::initial_shard() const {
  if (is_quantized()) {
    return at::zeros({layout_.shard_numel}, options_);
  }
  const ShardStore* store = store_of(storage_);
  return store == nullptr ? own_part() : store->values();
}

void ShardedBucket::add_parameter(const at::Tensor& parameter) {
  // All ranks gather a parameter created by zero_init, also those that own none of it.
  const Gathered gathered({parameter}, /*writes=*/false);
  const c10::impl::ExcludeDispatchKeyGuard own_work(comm::kShardedParamKey);
  const size_t index = layout_.parameters.size();
  const flat::BucketEntry& entry = layout_.entries[index];
  const auto [begin, end] = layout_.own_range(index);
  at::Tensor own;
  if (begin < end) {
    own = shard_.narrow(0, begin - layout_.shard_begin, end - begin);
  }
  if (!std::holds_alternative<Replicated>(storage_) && own.defined()) {
    own.copy_(parameter.reshape({-1}).narrow(0, begin - entry.offset, end - begin));
  }
  if (const FlatParamBuffer* buffer = buffer_of(storage_)) {
    comm::set_data_keeping_mark(parameter, buffer->view(entry.offset, parameter.sizes()));
  } else {
    const at::Tensor place = values().narrow(0, entry.offset, entry.numel).view(parameter.sizes());
    place.copy_(parameter);
    comm::set_data_keeping_mark(parameter, place);
  }
  layout_.parameters.push_back(parameter);
  if (own.defined() && !is_quantized()) {
    // A separate leaf: views of a tensor that requires gradients could not be updated.
    const at::Tensor values = own.variable_data();
    values.set_requires_grad(parameter.requires_grad());
    layout_.slices.push_back({parameter, begin - entry.offset, values});
    layout_.entry_of_slice.push_back(index);
  }
}

std::vector<ShardSlice> ShardedBucket::dequantized() const {
  std::vector<ShardSlice> copies;
  const auto* quantized = std::get_if<ShardedQuantized>(&storage_);
  if (quantized == nullptr) {
    return copies;
  }
  const at::Tensor all = quantized->shard.dequantize();
  for (size_t i = 0; i < layout_.entries.size(); ++i) {
    const auto [begin, end] = layout_.own_range(i);
    if (begin < end) {
      copies.push_back(
          {layout_.parameters[i],
           begin - layout_.entries[i].offset,
           all.narrow(0, begin - layout_.shard_begin, end - begin).clone()});
    }
  }
  return copies;
}

void ShardedBucket::store_quantized(const ShardSlice& copy) {
  QuantizedShard& shard = std::get<ShardedQuantized>(storage_).shard;
  for (size_t i = 0; i < layout_.entries.size(); ++i) {
    if (layout_.parameters[i].is_same(copy.parameter)) {
      shard.write(layout_.own_range(i).first - layout_.shard_begin, copy.values);
    }
  }
}

bool ShardedBucket::is_in_bucket(size_t entry) const {
  const c10::TensorImpl& parameter = *layout_.parameters[entry].unsafeGetTensorImpl();
  const c10::TensorImpl& bucket = *values().unsafeGetTensorImpl();
  return parameter.has_storage() &&
         parameter.unsafe_storage().unsafeGetStorageImpl() ==
             bucket.unsafe_storage().unsafeGetStorageImpl() &&
         parameter.storage_offset() == bucket.storage_offset() + layout_.entries[entry].offset;
}

void ShardedBucket::add_memory(
    std::vector<at::Tensor>& parameters,
    std::vector<at::Tensor>& masters,
    std::vector<at::Tensor>& gradients) const {
  const auto add = [](std::vector<at::Tensor>& to, const at::Tensor& tensor) {
    if (tensor.defined()) {
      to.push_back(tensor);
    }
  };
  const auto add_store = [&](const ShardStore& store) {
    if (!store.file()) {
      add(store.are_masters() ? masters : parameters, store.values());
    }
    add(parameters, store.rounded());
  };
  std::visit(
      Visitor{
          [&](const Replicated& kind) { add(parameters, kind.full); },
          [&](const ReplicatedWithMasters& kind) {
            add(parameters, kind.full);
            add_store(kind.masters);
          },
          [&](const Sharded& kind) { add_store(kind.shard); },
          [&](const ShardedQuantized& kind) { add(parameters, kind.shard.bytes()); }},
      storage_);
  add(parameters, format_.secondary());
  if (gradients_) {
    add(gradients, gradients_->shard_gradient());
  }
}

void ShardedBucket::bump_versions() {
  for (const at::Tensor& parameter : layout_.parameters) {
    parameter.unsafeGetTensorImpl()->bump_version();
  }
}

Pending ShardedBucket::start_gather(Source source) {
  format_.set_source(source);
  if (auto* quantized = std::get_if<ShardedQuantized>(&storage_)) {
    quantized->shard.end_writes();
  }
  if (source == Source::kSecondary) {
    return format_.gather_secondary(values());
  }
  return std::visit(
      Visitor{
          [&](Replicated& kind) { return format_.gather_exact(kind.full, shard_); },
          [&](ReplicatedWithMasters& kind) {
            return format_.gather_exact(kind.full, kind.masters.on_device(own_part()));
          },
          [&](Sharded& kind) {
            return format_.is_rounded()
                       ? format_.gather_encoded(format_.encode(kind.shard.on_device()))
                       : format_.gather_exact(values(), kind.shard.on_device(own_part()));
          },
          [&](ShardedQuantized& kind) { return format_.gather_encoded(kind.shard.bytes()); }},
      storage_);
}

void ShardedBucket::drop_secondary() {
  format_.drop_secondary();
  if (auto* sharded = std::get_if<Sharded>(&storage_)) {
    sharded->shard.mark_changed();
  }
}

void ShardedBucket::write_back() {
  const at::Tensor own = own_part();
  std::visit(
      Visitor{
          [](Replicated& /*kind*/) {},
          [&](ReplicatedWithMasters& kind) { kind.masters.store(own); },
          [&](Sharded& kind) {
            if (!format_.is_rounded()) {
              kind.shard.store(own);
              return;
            }
            const at::Tensor exact = kind.shard.on_device();
            const at::Tensor received = format_.decode(format_.encode(exact));
            kind.shard.store(at::where(is_unwritten(own, received), exact, own));
          },
          [&](ShardedQuantized& kind) {
            if (!is_unwritten(own, kind.shard.dequantize()).all().item<bool>()) {
              kind.shard.store(own);
            }
          }},
      storage_);
}

}  // namespace lockstep::zero
