// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/nn/functional.h>
#include <torch/nn/modules.h>

#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/tensor_parallel/tensor_parallel.h"

/// A small GPT of ordinary modules, which know nothing of ranks.
namespace lockstep::test_gpt {

inline constexpr int64_t kWords = 32;
inline constexpr int64_t kWidth = 16;
inline constexpr int64_t kHeadSize = 4;
inline constexpr int64_t kPositions = 8;

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(double dropout)
      : norm1(
            register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
        qkv(register_module("qkv", torch::nn::Linear(kWidth, 3 * kWidth))),
        out(register_module("out", torch::nn::Linear(kWidth, kWidth))),
        norm2(
            register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
        up(register_module("up", torch::nn::Linear(kWidth, 4 * kWidth))),
        down(register_module(
            "down", torch::nn::Linear(torch::nn::LinearOptions(4 * kWidth, kWidth).bias(false)))),
        drop(register_module("drop", torch::nn::Dropout(dropout))) {}

  at::Tensor attention(const at::Tensor& x) {
    std::vector<at::Tensor> heads;
    for (const at::Tensor& part : qkv(x).chunk(3, -1)) {
      heads.push_back(part.view({part.size(0), part.size(1), -1, kHeadSize}).transpose(1, 2));
    }
    const at::Tensor mixed = at::scaled_dot_product_attention(
        heads[0], heads[1], heads[2], /*attn_mask=*/{}, /*dropout_p=*/0.0, /*is_causal=*/true);
    return out(mixed.transpose(1, 2).flatten(2));
  }

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor attended = x + drop(attention(norm1(x)));
    return attended + down(at::gelu(up(norm2(attended))));
  }

  torch::nn::LayerNorm norm1;
  torch::nn::Linear qkv, out;
  torch::nn::LayerNorm norm2;
  torch::nn::Linear up, down;
  torch::nn::Dropout drop;
};
TORCH_MODULE(Block);

struct GptImpl : torch::nn::Module {
  explicit GptImpl(bool tied = false, double dropout = 0)
      : words(register_module("words", torch::nn::Embedding(kWords, kWidth))),
        positions(register_module("positions", torch::nn::Embedding(kPositions, kWidth))) {
    for (int i = 0; i < 2; ++i) {
      blocks->push_back(Block(dropout));
    }
    register_module("blocks", blocks);
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    if (!tied) {
      head = register_module(
          "head", torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWords).bias(false)));
    }
  }

  at::Tensor forward(const at::Tensor& tokens) {
    at::Tensor x = words(tokens) + positions(at::arange(tokens.size(1)).unsqueeze(0));
    for (const auto& block : *blocks) {
      x = run_block(std::dynamic_pointer_cast<BlockImpl>(block), x);
    }
    return head ? head(norm(x)) : at::linear(norm(x), words->weight);
  }

  /// Computes a block, perhaps with a checkpoint of its activations.
  std::function<at::Tensor(const Block&, const at::Tensor&)> run_block =
      [](Block block, const at::Tensor& x) { return block->forward(x); };
  torch::nn::Embedding words, positions;
  torch::nn::ModuleList blocks;
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear head{nullptr};  ///< Null: the weight of `words`.
};
TORCH_MODULE(Gpt);

inline NamedTensors parameters_of(torch::nn::Module& module) {
  NamedTensors named;
  for (const auto& item : module.named_parameters()) {
    named.push_back({item.key(), item.value()});
  }
  return named;
}

inline tensor_parallel::ModuleClasses classes_of(torch::nn::Module& module) {
  tensor_parallel::ModuleClasses classes;
  for (const auto& item : module.named_modules()) {
    classes.emplace_back(item.key(), item.value()->name());
  }
  return classes;
}

inline TensorPlan plan(bool tied = false) {
  TensorPlan all = {
      {"words", TensorStyle::kEmbedding},
      {"blocks.*.qkv", TensorStyle::kColwise, {1, 1, 1}},
      {"blocks.*.out", TensorStyle::kRowwise},
      {"blocks.*.up", TensorStyle::kColwise},
      {"blocks.*.down", TensorStyle::kRowwise}};
  if (!tied) {
    all.push_back({"head", TensorStyle::kColwiseGather});
  }
  return all;
}

/// The same, with rules for the modules between divided layers.
inline TensorPlan sequence_plan(bool tied = false) {
  TensorPlan all = plan(tied);
  for (const char* modules : {"positions", "blocks.*.norm1", "blocks.*.norm2", "norm"}) {
    all.push_back({modules, TensorStyle::kSequence});
  }
  return all;
}

}  // namespace lockstep::test_gpt
