// SPDX-License-Identifier: Apache-2.0
#include "lockstep/context_parallel/ulysses_attention.h"

#include <numeric>
#include <vector>

#include <fmt/format.h>

#include <ATen/ops/scaled_dot_product_attention.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/tensor/attention_interceptor.h"
#include "lockstep/context_parallel/group_function.h"

namespace lockstep {
namespace {

using context_parallel::AttentionTensors;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// (B, H, T/P, D) of this rank's positions to (B, H/P, T, D) of its heads, in rank order.
Pending start_heads(Group& group, const at::Tensor& positions) {
  const at::Tensor parts = positions.unflatten(1, {group.size(), positions.size(1) / group.size()});
  return group.all_to_all(parts.transpose(0, 1).contiguous());
}
at::Tensor heads_of(const at::Tensor& received) {  // (P, B, H/P, T/P, D)
  return received.permute({1, 2, 0, 3, 4}).flatten(2, 3);
}

/// (B, H/P, T, D) of this rank's heads to (B, H, T/P, D) of its positions.
Pending start_positions(Group& group, const at::Tensor& heads) {
  const at::Tensor parts = heads.unflatten(2, {group.size(), heads.size(2) / group.size()});
  return group.all_to_all(parts.permute({2, 0, 1, 3, 4}).contiguous());
}
at::Tensor positions_of(const at::Tensor& received) {  // (P, B, H/P, T/P, D)
  return received.transpose(0, 1).flatten(1, 2);
}

using Start = Pending (*)(Group& group, const at::Tensor& tensor);
using Arrange = at::Tensor (*)(const at::Tensor& received);

/// Exchanges all tensors at the same time.
variable_list exchange_all(Group group, at::TensorList tensors, Start start, Arrange arrange) {
  std::vector<Pending> pending;
  for (const at::Tensor& tensor : tensors) {
    pending.push_back(start(group, tensor));
  }
  variable_list result;
  for (Pending& one : pending) {
    result.push_back(arrange(one.wait()));
  }
  return result;
}

/// One function for query, key and value, so that their gradients are sent in the same order on all
/// ranks.
struct ToHeads : torch::autograd::Function<ToHeads> {
  static variable_list forward(
      AutogradContext* context, at::TensorList positions, const Group& group) {
    context_parallel::keep_group(*context, group);
    return exchange_all(group, positions, &start_heads, &heads_of);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    context_parallel::refuse_create_graph("ulysses_attention");
    variable_list result = exchange_all(
        context_parallel::group_of(*context), gradients, &start_positions, &positions_of);
    result.emplace_back();  // The group has no gradient.
    return result;
  }
};

struct ToPositions : torch::autograd::Function<ToPositions> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& heads, const Group& group) {
    context_parallel::keep_group(*context, group);
    return exchange_all(group, heads, &start_positions, &positions_of)[0];
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    context_parallel::refuse_create_graph("ulysses_attention");
    variable_list result =
        exchange_all(context_parallel::group_of(*context), gradients, &start_heads, &heads_of);
    result.emplace_back();
    return result;
  }
};

/// Returns how often each key head is sent, so that every rank gets those of its query heads.
int64_t key_repetitions(int64_t heads, int64_t key_heads, int64_t ranks) {
  const int64_t times = ranks / std::gcd(key_heads, ranks);
  if (heads % ranks != 0 || heads % (key_heads * times) != 0) {
    throw ConfigError(
        "ulysses_attention",
        fmt::format(
            "{} query heads and {} key heads cannot be divided over {} ranks; expected a multiple "
            "of {} query heads; use fewer ranks, or AttentionMethod::kRing, which divides no heads",
            heads,
            key_heads,
            ranks,
            std::lcm(key_heads, ranks)));
  }
  return times;
}

at::Tensor repeated(const at::Tensor& keys, int64_t times) {
  return times == 1 ? keys : keys.repeat_interleave(times, 1);
}

}  // namespace

at::Tensor ulysses_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const Group& group,
    const SequenceShard& shard,
    const AttentionOptions& options) {
  shard.expect_group("ulysses_attention", group);
  const AttentionTensors tensors = context_parallel::checked_attention_tensors(
      "ulysses_attention", {query, key, value}, shard, options);
  const int64_t times = key_repetitions(tensors.query.size(1), tensors.key.size(1), group.size());
  const comm::AttentionInterceptor::Scope own_work(nullptr);
  const std::vector<at::Tensor> positions{
      tensors.query, repeated(tensors.key, times), repeated(tensors.value, times)};
  variable_list heads = ToHeads::apply(at::TensorList(positions), group);
  if (options.is_causal) {
    for (at::Tensor& tensor : heads) {
      tensor = shard.to_sequence_order(tensor, 2);
    }
  }
  at::Tensor output = at::scaled_dot_product_attention(
      heads[0],
      heads[1],
      heads[2],
      /*attn_mask=*/{},
      options.dropout_p,
      options.is_causal,
      options.scale,
      options.enable_gqa);
  if (options.is_causal) {
    output = shard.to_rank_order(output, 2);
  }
  output = ToPositions::apply(output, group);
  return query.dim() == 3 ? output.squeeze(0) : output;
}

}  // namespace lockstep
