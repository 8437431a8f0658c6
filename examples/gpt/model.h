// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <torch/torch.h>

namespace examples {

struct GptOptions {
  int64_t words = 64;
  int64_t context = 64;
  int64_t layers = 4;
  int64_t heads = 4;
  int64_t head_size = 32;
  double dropout = 0;
};

/// A transformer block of ordinary modules. It knows nothing of processes: the number of heads is
/// what the result of `qkv` has, so that a process with a part of the heads computes those.
struct GptBlockImpl : torch::nn::Module {
  explicit GptBlockImpl(const GptOptions& options)
      : head_size(options.head_size),
        width(options.heads * options.head_size),
        norm1(register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        qkv(register_module("qkv", torch::nn::Linear(width, 3 * width))),
        out(register_module("out", torch::nn::Linear(width, width))),
        norm2(register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        up(register_module("up", torch::nn::Linear(width, 4 * width))),
        down(register_module("down", torch::nn::Linear(4 * width, width))),
        drop(register_module("drop", torch::nn::Dropout(options.dropout))) {}

  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor attended = x + drop(out(attend(qkv(norm1(x)))));
    return attended + drop(down(torch::gelu(up(norm2(attended)))));
  }

  /// Attends with q, k and v (batch, time, 3 * heads * head_size).
  torch::Tensor attend(const torch::Tensor& all) const {
    std::vector<torch::Tensor> parts;
    for (const torch::Tensor& part : all.chunk(3, -1)) {
      parts.push_back(part.view({part.size(0), part.size(1), -1, head_size}).transpose(1, 2));
    }
    return at::scaled_dot_product_attention(
               parts[0], parts[1], parts[2], {}, /*dropout_p=*/0, /*is_causal=*/true)
        .transpose(1, 2)
        .flatten(2);
  }

  int64_t head_size, width;
  torch::nn::LayerNorm norm1;
  torch::nn::Linear qkv, out;
  torch::nn::LayerNorm norm2;
  torch::nn::Linear up, down;
  torch::nn::Dropout drop;
};
TORCH_MODULE(GptBlock);

/// The first layer of a GPT: maps words (batch, time) to vectors.
struct GptInputImpl : torch::nn::Module {
  GptInputImpl(torch::nn::Embedding of_words, torch::nn::Embedding of_positions)
      : words(register_module("words", std::move(of_words))),
        positions(register_module("positions", std::move(of_positions))) {}

  torch::Tensor forward(const torch::Tensor& input) {
    return words(input) + positions(torch::arange(input.size(1), input.device()).unsqueeze(0));
  }

  torch::nn::Embedding words, positions;
};
TORCH_MODULE(GptInput);

/// A GPT: maps words (batch, time) to scores of the next word (batch, time, words).
struct GptImpl : torch::nn::Module {
  explicit GptImpl(const GptOptions& options) {
    const int64_t width = options.heads * options.head_size;
    words = register_module("words", torch::nn::Embedding(options.words, width));
    positions = register_module("positions", torch::nn::Embedding(options.context, width));
    for (int64_t i = 0; i < options.layers; ++i) {
      blocks->push_back(GptBlock(options));
    }
    register_module("blocks", blocks);
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    head = register_module(
        "head", torch::nn::Linear(torch::nn::LinearOptions(width, options.words).bias(false)));
  }

  torch::Tensor forward(const torch::Tensor& input) {
    const auto places = torch::arange(input.size(1), input.device()).unsqueeze(0);
    torch::Tensor x = words(input) + positions(places);
    for (const auto& block : *blocks) {
      x = block->as<GptBlock>()->forward(x);
    }
    return head(norm(x));
  }

  /// Returns the same model as a list of layers, which a pipeline can cut.
  torch::nn::Sequential sequential() {
    torch::nn::Sequential all(GptInput(words, positions));
    for (const auto& block : *blocks) {
      all->push_back(GptBlock(std::dynamic_pointer_cast<GptBlockImpl>(block)));
    }
    all->push_back(norm);
    all->push_back(head);
    return all;
  }

  torch::nn::Embedding words{nullptr}, positions{nullptr};
  torch::nn::ModuleList blocks;
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Gpt);

}  // namespace examples
