// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include "lockstep/context_parallel/sequence_shard.h"
#include "lockstep/context_parallel/test_attention.h"

namespace lockstep::context_parallel {

/// Causal attention by scaled_dot_product_attention, which knows nothing of shards.
struct SelfAttentionImpl : torch::nn::Module {
  static constexpr int64_t kHeads = 4;

  explicit SelfAttentionImpl(int64_t width)
      : qkv(register_module("qkv", torch::nn::Linear(width, 3 * width))),
        out(register_module("out", torch::nn::Linear(width, width))) {}
  at::Tensor forward(const at::Tensor& x) {
    const auto parts = qkv(x).unflatten(2, {3, kHeads, -1}).permute({2, 0, 3, 1, 4}).unbind(0);
    const at::Tensor mixed =
        at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0, /*is_causal=*/true);
    return out(mixed.transpose(1, 2).flatten(2));
  }
  torch::nn::Linear qkv;
  torch::nn::Linear out;
};
TORCH_MODULE(SelfAttention);

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width)
      : norm(register_module(
            "norm",
            torch::nn::LayerNorm(torch::nn::LayerNormOptions(std::vector<int64_t>{width})))),
        attention(register_module("attention", SelfAttention(width))),
        first(register_module("first", torch::nn::Linear(width, 2 * width))),
        last(register_module("last", torch::nn::Linear(2 * width, width))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = x + attention(norm(x));
    return y + last(at::gelu(first(y)));
  }
  torch::nn::LayerNorm norm;
  SelfAttention attention;
  torch::nn::Linear first;
  torch::nn::Linear last;
};
TORCH_MODULE(Block);

/// A causal language model with position embeddings.
struct LanguageModelImpl : torch::nn::Module {
  static constexpr int64_t kWords = 13;
  static constexpr int64_t kWidth = 16;

  LanguageModelImpl(int64_t length, at::ScalarType dtype)
      : words(register_module("words", torch::nn::Embedding(kWords, kWidth))),
        places(register_module("places", torch::nn::Embedding(length, kWidth))),
        blocks(register_module("blocks", torch::nn::ModuleList())),
        head(register_module("head", torch::nn::Linear(kWidth, kWords))) {
    blocks->push_back(Block(kWidth));
    blocks->push_back(Block(kWidth));
    // Irregular values, so that attention is not nearly uniform.
    const at::NoGradGuard no_grad;
    double phase = 0;
    for (auto& item : named_parameters()) {
      const bool is_norm = item.key().find("norm.weight") != std::string::npos;
      item.value().copy_(
          sines(item.value().sizes(), ++phase, at::kDouble, 0.4) + (is_norm ? 1 : 0));
    }
    to(dtype);
  }
  /// `tokens` (B, T), `positions` (T): their positions in the sequence.
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& positions) {
    at::Tensor x = words(tokens) + places(positions);
    for (const auto& block : *blocks) {
      x = block->as<Block>()->forward(x);
    }
    return head(x);
  }
  torch::nn::Embedding words;
  torch::nn::Embedding places;
  torch::nn::ModuleList blocks;
  torch::nn::Linear head;
};
TORCH_MODULE(LanguageModel);

/// A batch of sequences and labels: each label is the next token; shifted before it is sharded.
struct TokenBatch {
  at::Tensor tokens;  ///< int64 (B, T).
  at::Tensor labels;  ///< int64 (B, T); -100 at the end of each sequence.

  static TokenBatch make(int64_t batch, int64_t length) {
    const at::Tensor index = at::arange(batch * (length + 1), at::kLong);
    const at::Tensor text = (index * index + 3 * index)
                                .remainder(LanguageModelImpl::kWords)
                                .reshape({batch, length + 1});
    at::Tensor labels = text.slice(1, 1).clone();
    labels.select(1, length - 1).fill_(-100);
    return {text.slice(1, 0, length).contiguous(), labels};
  }
  TokenBatch part_of(const SequenceShard& shard) const {
    return {shard.shard_sequence(tokens, 1), shard.shard_sequence(labels, 1)};
  }
  int64_t count() const { return (labels != -100).sum().item<int64_t>(); }
};

/// Returns the sum of the losses of this part's labels, divided by the number of all labels.
inline at::Tensor loss_of(const at::Tensor& logits, const at::Tensor& labels, int64_t all_labels) {
  namespace functional = torch::nn::functional;
  return functional::cross_entropy(
             logits.flatten(0, 1),
             labels.flatten(),
             functional::CrossEntropyFuncOptions().reduction(torch::kSum)) /
         static_cast<double>(all_labels);
}

}  // namespace lockstep::context_parallel
