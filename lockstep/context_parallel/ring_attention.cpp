// SPDX-License-Identifier: Apache-2.0
#include "lockstep/context_parallel/ring_attention.h"

#include <array>
#include <bit>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/tensor/attention_interceptor.h"
#include "lockstep/context_parallel/block_attention.h"
#include "lockstep/context_parallel/group_function.h"
#include "lockstep/context_parallel/ring_block.h"

namespace lockstep {
namespace {

using context_parallel::AttentionTensors;
using context_parallel::block_attention;
using context_parallel::block_attention_backward;
using context_parallel::BlockGradients;
using context_parallel::BlockOutput;
using context_parallel::BlockSettings;
using context_parallel::ring_block;
using context_parallel::RingBlock;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// RAII scope: autocast does not change the dtypes that are chosen here.
using WithoutAutocast = c10::impl::ExcludeDispatchKeyGuard;

struct RingCall {
  Group group;
  SequenceShard shard;
  BlockSettings settings;
};

struct RingCallHolder final : torch::CustomClassHolder {
  explicit RingCallHolder(RingCall held) : call(std::move(held)) {}
  RingCall call;
};

/// Holds keys and values in one flat tensor, which is one message.
class KeyValue {
 public:
  KeyValue(const at::Tensor& key, const at::Tensor& value)
      : KeyValue(at::cat({key.reshape({-1}), value.reshape({-1})}), key.sizes(), value.sizes()) {}
  KeyValue(at::Tensor flat, at::IntArrayRef key_sizes, at::IntArrayRef value_sizes)
      : flat_(std::move(flat)), key_sizes_(key_sizes.vec()), value_sizes_(value_sizes.vec()) {}

  /// Returns another one of these shapes, uninitialized.
  KeyValue empty_like() const { return {at::empty_like(flat_), key_sizes_, value_sizes_}; }
  KeyValue zeros_like(at::ScalarType dtype) const {
    return {at::zeros_like(flat_, flat_.options().dtype(dtype)), key_sizes_, value_sizes_};
  }
  const at::Tensor& flat() const { return flat_; }
  at::Tensor key() const {
    return flat_.narrow(0, 0, c10::multiply_integers(key_sizes_)).view(key_sizes_);
  }
  at::Tensor value() const {
    const int64_t count = c10::multiply_integers(value_sizes_);
    return flat_.narrow(0, flat_.numel() - count, count).view(value_sizes_);
  }
  void swap(KeyValue& other) noexcept { std::swap(flat_, other.flat_); }

 private:
  at::Tensor flat_;
  std::vector<int64_t> key_sizes_;
  std::vector<int64_t> value_sizes_;
};

/// Returns a checksum of everything that must be equal on all ranks.
int checksum_of(const AttentionTensors& tensors, const RingCall& call) {
  uint64_t sum = 14695981039346656037U;  // FNV-1a.
  const auto add = [&](int64_t number) {
    sum = (sum ^ static_cast<uint64_t>(number)) * 1099511628211U;
  };
  for (const at::Tensor* tensor : {&tensors.query, &tensors.key, &tensors.value}) {
    for (const int64_t size : tensor->sizes()) {
      add(size);
    }
  }
  add(static_cast<int64_t>(call.shard.layout()));
  add(call.settings.is_causal ? 1 : 0);
  add(std::bit_cast<int64_t>(call.settings.scale));
  constexpr uint64_t kPositive = (uint64_t{1} << 28U) - 1;
  return static_cast<int>((sum ^ (sum >> 32U)) & kPositive);
}

/// Exchanges messages with the neighbours in the ring of ranks: sends to the next, receives from
/// the previous one.
class RingExchange {
 public:
  RingExchange(const Group& group, int tag)
      : group_(group),
        next_((group.rank() + 1) % group.size()),
        previous_((group.rank() + group.size() - 1) % group.size()),
        tag_(tag) {}

  /// Starts an exchange. Both tensors must not be used otherwise until wait().
  void start(const at::Tensor& outgoing, const at::Tensor& incoming) {
    received_ = group_.recv(incoming, previous_, tag_);
    sent_ = group_.send(outgoing, next_, tag_);
  }
  /// Blocks until the exchange is done. The receives come first: a send is done when its receiver
  /// has everything.
  void wait() {
    received_->wait();
    sent_->wait();
    received_.reset();
    sent_.reset();
  }

 private:
  Group group_;
  int next_;
  int previous_;
  int tag_;
  std::optional<Pending> received_;
  std::optional<Pending> sent_;
};

/// Calls `compute(block, source's keys and values)` for the blocks of all ranks, own first, then
/// against the ring's direction, while the next keys and values arrive.
template <typename Compute>
void for_each_block(const RingCall& call, KeyValue current, int tag, const Compute& compute) {
  const int ranks = call.group.size();
  RingExchange exchange(call.group, tag);
  KeyValue incoming = ranks > 1 ? current.empty_like() : current;
  for (int step = 0; step < ranks; ++step) {
    const bool is_last = step + 1 == ranks;
    if (!is_last) {
      exchange.start(current.flat(), incoming.flat());
    }
    const int source = (call.group.rank() + ranks - step) % ranks;
    compute(step, ring_block(call.shard, source, call.settings.is_causal), current);
    if (!is_last) {
      exchange.wait();
      current.swap(incoming);
    }
  }
}

/// Returns the rows that a block has.
at::Tensor rows_of(const at::Tensor& tensor, const RingBlock& block) {
  return tensor.narrow(2, block.query_begin, tensor.size(2) - block.query_begin);
}

BlockOutput run_forward(const RingCall& call, const AttentionTensors& tensors, int tag) {
  const auto dtype = context_parallel::accumulator_dtype(tensors.query.scalar_type());
  BlockOutput merged;
  for_each_block(
      call,
      KeyValue(tensors.key, tensors.value),
      tag,
      [&](int step, const RingBlock& block, const KeyValue& source) {
        if (block.keys == 0) {
          return;
        }
        const BlockOutput part = block_attention(
            rows_of(tensors.query, block),
            source.key().narrow(2, 0, block.keys),
            source.value().narrow(2, 0, block.keys),
            {.is_causal = block.is_causal, .scale = call.settings.scale});
        if (step == 0) {
          merged = {.output = part.output.to(dtype), .log_sum_exp = part.log_sum_exp};
        } else {
          merge_block(merged, part, block.query_begin);
        }
      });
  merged.output = merged.output.to(tensors.query.scalar_type());
  return merged;
}

/// Sums the gradients of keys and values along the ring: those of a rank's keys start at the rank
/// after it, one step after the keys, and arrive at the rank itself.
class RingGradients {
 public:
  RingGradients(const RingCall& call, const KeyValue& like, at::ScalarType dtype, int tag)
      : like_(like), dtype_(dtype), exchange_(call.group, tag) {}

  /// Adds this rank's part of the gradients of the keys of `step`. `add` adds it to its argument.
  template <typename Add>
  void add(int step, const Add& add) {
    if (step == 0) {
      own_.emplace(like_.zeros_like(dtype_));
      add(*own_);
      return;
    }
    KeyValue sum = step == 1 ? like_.zeros_like(dtype_) : take();
    add(sum);
    outgoing_.emplace(std::move(sum));
    incoming_.emplace(outgoing_->empty_like());
    exchange_.start(outgoing_->flat(), incoming_->flat());
  }

  /// Returns the gradients of this rank's keys and values.
  KeyValue finish() {
    if (incoming_) {
      own_->flat().add_(take().flat());
    }
    return *own_;
  }

 private:
  KeyValue take() {
    exchange_.wait();
    return *incoming_;
  }

  const KeyValue& like_;
  at::ScalarType dtype_;
  RingExchange exchange_;
  std::optional<KeyValue> own_;
  std::optional<KeyValue> outgoing_;
  std::optional<KeyValue> incoming_;
};

AttentionTensors run_backward(
    const RingCall& call,
    const AttentionTensors& tensors,
    const BlockOutput& merged,
    const at::Tensor& gradient,
    int tag) {
  const auto dtype = context_parallel::accumulator_dtype(tensors.query.scalar_type());
  const KeyValue own(tensors.key, tensors.value);
  RingGradients sums(call, own, dtype, tag + 1);
  at::Tensor query_gradient =
      at::zeros(tensors.query.sizes(), tensors.query.options().dtype(dtype));
  for_each_block(call, own, tag, [&](int step, const RingBlock& block, const KeyValue& source) {
    sums.add(step, [&](const KeyValue& sum) {
      if (block.keys == 0) {
        return;
      }
      const BlockGradients part = block_attention_backward(
          rows_of(gradient, block),
          rows_of(tensors.query, block),
          source.key().narrow(2, 0, block.keys),
          source.value().narrow(2, 0, block.keys),
          {.output = rows_of(merged.output, block),
           .log_sum_exp = rows_of(merged.log_sum_exp, block)},
          {.is_causal = block.is_causal, .scale = call.settings.scale});
      rows_of(query_gradient, block).add_(part.query);
      sum.key().narrow(2, 0, block.keys).add_(part.key);
      sum.value().narrow(2, 0, block.keys).add_(part.value);
    });
  });
  const KeyValue key_value = sums.finish();
  const auto given = tensors.query.scalar_type();
  return {query_gradient.to(given), key_value.key().to(given), key_value.value().to(given)};
}

struct RingAttention : torch::autograd::Function<RingAttention> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& query,
      const at::Tensor& key,
      const at::Tensor& value,
      const RingCall& call) {
    const AttentionTensors tensors{query, key, value};
    const BlockOutput merged = run_forward(call, tensors, checksum_of(tensors, call));
    context->saved_data["call"] =
        c10::IValue::make_capsule(c10::make_intrusive<RingCallHolder>(call));
    context->save_for_backward({query, key, value, merged.output, merged.log_sum_exp});
    return merged.output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    context_parallel::refuse_create_graph("ring_attention");
    const WithoutAutocast guard(c10::autocast_dispatch_keyset);
    const auto holder =
        c10::static_intrusive_pointer_cast<RingCallHolder>(context->saved_data["call"].toCapsule());
    const variable_list saved = context->get_saved_variables();
    const AttentionTensors tensors{saved[0], saved[1], saved[2]};
    const AttentionTensors result = run_backward(
        holder->call,
        tensors,
        {.output = saved[3], .log_sum_exp = saved[4]},
        gradients[0],
        checksum_of(tensors, holder->call));
    return {result.query, result.key, result.value, at::Tensor()};
  }
};

}  // namespace

at::Tensor ring_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const Group& group,
    const SequenceShard& shard,
    const AttentionOptions& options) {
  shard.expect_group("ring_attention", group);
  if (options.dropout_p != 0) {
    throw ConfigError(
        "ring_attention",
        fmt::format(
            "dropout_p of attention is not supported by ring attention; got {}, expected 0; train "
            "without dropout in the attention, or use AttentionMethod::kUlysses",
            options.dropout_p));
  }
  const AttentionTensors tensors = context_parallel::checked_attention_tensors(
      "ring_attention", {query, key, value}, shard, options);
  const double features = static_cast<double>(tensors.query.size(3));
  const RingCall call{
      .group = group,
      .shard = shard,
      .settings = {
          .is_causal = options.is_causal,
          .scale = options.scale.value_or(1 / std::sqrt(features))}};
  const comm::AttentionInterceptor::Scope own_work(nullptr);
  const WithoutAutocast guard(c10::autocast_dispatch_keyset);
  const at::Tensor output = RingAttention::apply(tensors.query, tensors.key, tensors.value, call);
  return query.dim() == 3 ? output.squeeze(0) : output;
}

}  // namespace lockstep
