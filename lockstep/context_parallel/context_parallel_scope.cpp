// SPDX-License-Identifier: Apache-2.0
#include "lockstep/context_parallel/context_parallel_scope.h"

#include <exception>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/transformer.h>
#include <torch/nn/modules/transformercoder.h>
#include <torch/nn/modules/transformerlayer.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/context_parallel/ring_attention.h"
#include "lockstep/context_parallel/sharded_attention.h"
#include "lockstep/context_parallel/ulysses_attention.h"

namespace lockstep {
namespace {

/// Returns `tensor` as autocast would pass it to attention.
at::Tensor as_autocast(const at::Tensor& tensor) {
  const c10::DeviceType device = tensor.device().type();
  if (!at::autocast::is_autocast_enabled(device)) {
    return tensor;
  }
  return at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), tensor, device);
}

std::string no_attention_text() {
  return "the forward within a ContextParallelScope has called no scaled_dot_product_attention, so "
         "each rank has computed attention over its own part of the sequence, if any; expected at "
         "least 1 call; compute attention by torch::scaled_dot_product_attention, ring_attention "
         "or "
         "ulysses_attention";
}

template <typename... Modules>
bool is_any_of(const torch::nn::Module& module) {
  return ((dynamic_cast<const Modules*>(&module) != nullptr) || ...);
}

bool hides_attention(const torch::nn::Module& module) {
  return is_any_of<
      torch::nn::MultiheadAttentionImpl,
      torch::nn::TransformerImpl,
      torch::nn::TransformerEncoderImpl,
      torch::nn::TransformerDecoderImpl,
      torch::nn::TransformerEncoderLayerImpl,
      torch::nn::TransformerDecoderLayerImpl>(module);
}

void expect_no_hidden_attention(const torch::nn::Module& module, const std::string& name) {
  if (hides_attention(module)) {
    throw ConfigError(
        "context_parallel",
        fmt::format(
            "the module {} is a {}, which computes attention without scaled_dot_product_attention, "
            "so a rank would see its own part of the sequence only; replace it by a module that "
            "calls torch::scaled_dot_product_attention",
            name.empty() ? "itself" : fmt::format("\"{}\"", name),
            module.name()));
  }
  for (const auto& child : module.named_children()) {
    expect_no_hidden_attention(
        *child.value(), name.empty() ? child.key() : fmt::format("{}.{}", name, child.key()));
  }
}

}  // namespace

namespace context_parallel {

at::Tensor ShardedAttention::attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    bool has_mask,
    const AttentionOptions& options) {
  ++calls_;
  if (has_mask) {
    throw ConfigError(
        "context_parallel",
        "attn_mask is not supported with a sharded sequence; got a mask, expected none; pass "
        "is_causal in its place, or for padding, pad at the end of the sequence, use is_causal, "
        "and "
        "ignore the padded labels");
  }
  const at::Tensor q = as_autocast(query);
  const at::Tensor k = as_autocast(key);
  const at::Tensor v = as_autocast(value);
  return method_ == AttentionMethod::kRing ? ring_attention(q, k, v, group_, shard_, options)
                                           : ulysses_attention(q, k, v, group_, shard_, options);
}

void ShardedAttention::check_softmax(const at::Tensor& scores, int64_t dim) const {
  const int64_t last = scores.dim() - 1;
  const int64_t local = shard_.local_length();
  if (scores.dim() >= 3 && (dim == -1 || dim == last) && scores.size(-1) == local &&
      scores.size(-2) == local) {
    throw ConfigError(
        "context_parallel",
        fmt::format(
            "a softmax over scores of {0} x {0} positions is attention over this rank's part of "
            "the sequence only; compute it by torch::scaled_dot_product_attention "
            "(MultiheadAttention "
            "and TransformerEncoderLayer do not); if it is no attention, run it within a "
            "LocalAttentionScope",
            local));
  }
}

at::Tensor ShardedAttention::arange(
    const at::Tensor& plain,
    const at::Scalar& start,
    const at::Scalar& end,
    const at::Scalar& step) const {
  const auto is = [](const at::Scalar& given, int64_t expected) {
    return !given.isSymbolic() && !given.isComplex() &&
           given.toDouble() == static_cast<double>(expected);
  };
  if (arange_ == ArangePositions::kUnchanged || !is(start, 0) || !is(step, 1) ||
      !is(end, shard_.local_length())) {
    return plain;
  }
  if (arange_ == ArangePositions::kRefused) {
    throw ConfigError(
        "context_parallel",
        fmt::format(
            "arange({0}) may be the positions of this rank's part, or the indices of another "
            "dimension of a buffer that has {0} elements, too; use another batch size, or pass "
            "positions() to the model and set arange_gives_positions to false",
            shard_.local_length()));
  }
  return shard_.positions(plain.device()).to(plain.scalar_type());
}

void ShardedAttention::check_slice(const at::Tensor& table, int64_t dim, int64_t count) const {
  // Within autograd, what has no history is a parameter, a buffer, or was computed from frozen
  // ones.
  const bool is_table = table.is_leaf() && (table.requires_grad() || at::GradMode::is_enabled());
  if (arange_ == ArangePositions::kUnchanged || count != shard_.local_length() || !is_table ||
      dim < -table.dim() || dim >= table.dim() || table.size(dim) < shard_.length()) {
    return;
  }
  throw ConfigError(
      "context_parallel",
      fmt::format(
          "the first {0} of {1} elements of a parameter or buffer of shape [{2}] may be for the "
          "first {0} positions, but this rank has others; index it by arange({0}), which returns "
          "them, or pass positions() to the model and set arange_gives_positions to false",
          count,
          table.size(dim),
          fmt::join(table.sizes(), ", ")));
}

void ShardedAttention::expect_calls() const {
  if (calls_ == 0) {
    throw ConfigError("context_parallel", no_attention_text());
  }
}

void ShardedAttention::check_operation(const char* operation) const {
  throw ConfigError(
      "context_parallel",
      fmt::format(
          "{} computes attention over this rank's part of the sequence only; call "
          "torch::scaled_dot_product_attention in its place, or run it within a "
          "LocalAttentionScope if it is not over the sequence",
          operation));
}

}  // namespace context_parallel

ContextParallelScope::ContextParallelScope(
    const Group& group, const SequenceShard& shard, AttentionMethod method, ArangePositions arange)
    : attention_(
          std::make_shared<context_parallel::ShardedAttention>(group, shard, method, arange)),
      scope_([&]() -> std::shared_ptr<comm::AttentionInterceptor> {
        shard.expect_group("context_parallel", group);
        context_parallel::install_attention_dispatch();
        return group.size() > 1 ? attention_ : nullptr;
      }()),
      is_finished_(group.size() == 1) {}

ContextParallelScope::~ContextParallelScope() {
  if (!is_finished_ && attention_calls() == 0 && std::uncaught_exceptions() == 0) {
    log_warning(no_attention_text(), LogAudience::kEveryRank);
  }
}

int64_t ContextParallelScope::attention_calls() const {
  return attention_->calls();
}

void ContextParallelScope::finish() {
  if (!is_finished_ && attention_calls() == 0) {
    is_finished_ = true;
    throw ConfigError("context_parallel", no_attention_text());
  }
  is_finished_ = true;
}

void expect_no_hidden_attention(const torch::nn::Module& module) {
  expect_no_hidden_attention(module, "");
}

}  // namespace lockstep
