// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <torch/torch.h>

namespace examples {

/// Sets the size of the model.
struct ModelOptions {
  int64_t vocabulary = 0;
  int64_t context = 128;  ///< Context length in characters.
  int64_t layers = 4;
  int64_t heads = 4;
  int64_t width = 128;
  double dropout = 0.1;
};

/// Implements a transformer block: causal attention, then a two-layer MLP, each with a residual
/// connection.
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(const ModelOptions& options)
      : heads(options.heads),
        dropout(options.dropout),
        norm1(register_module("norm1", torch::nn::LayerNorm(norm_options(options)))),
        attention(
            register_module("attention", torch::nn::Linear(options.width, 3 * options.width))),
        projection(register_module("projection", torch::nn::Linear(options.width, options.width))),
        norm2(register_module("norm2", torch::nn::LayerNorm(norm_options(options)))),
        up(register_module("up", torch::nn::Linear(options.width, 4 * options.width))),
        down(register_module("down", torch::nn::Linear(4 * options.width, options.width))) {}

  torch::Tensor forward(torch::Tensor x) {
    x = x + drop(apply(projection, attend(apply(attention, norm1(x)))));
    return x + drop(apply(down, torch::gelu(apply(up, norm2(x)))));
  }

  /// Applies the layer in one kernel. `layer(x)` adds the bias of a 3-D input in a second one.
  static torch::Tensor apply(const torch::nn::Linear& layer, const torch::Tensor& x) {
    return torch::linear(x, layer->weight, layer->bias);
  }

  /// Attends with qkv (batch, time, 3 * width); returns (batch, time, width).
  torch::Tensor attend(const torch::Tensor& qkv) {
    const int64_t batch = qkv.size(0), time = qkv.size(1), width = qkv.size(2) / 3;
    // Unbound, since the gradients of parts[0] to parts[2] would be three tensors with zeros,
    // added.
    const auto parts =
        qkv.reshape({batch, time, 3, heads, width / heads}).permute({2, 0, 3, 1, 4}).unbind();
    const auto mixed = at::scaled_dot_product_attention(
        parts[0], parts[1], parts[2], {}, is_training() ? dropout : 0.0, /*is_causal=*/true);
    return mixed.transpose(1, 2).reshape({batch, time, width});
  }

  torch::Tensor drop(const torch::Tensor& x) { return torch::dropout(x, dropout, is_training()); }

  static torch::nn::LayerNormOptions norm_options(const ModelOptions& options) {
    return torch::nn::LayerNormOptions({options.width});
  }

  int64_t heads;
  double dropout;
  torch::nn::LayerNorm norm1;
  torch::nn::Linear attention, projection;
  torch::nn::LayerNorm norm2;
  torch::nn::Linear up, down;
};
TORCH_MODULE(Block);

/// Implements a decoder-only transformer over characters in plain torch::nn. Modelled on GPT-2
/// (Radford et al., 2019).
struct CharModelImpl : torch::nn::Module {
  explicit CharModelImpl(const ModelOptions& chosen)
      : options(chosen),
        characters(
            register_module("characters", torch::nn::Embedding(options.vocabulary, options.width))),
        places(register_module("places", torch::nn::Embedding(options.context, options.width))),
        norm(register_module(
            "norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.width})))) {
    for (int64_t i = 0; i < options.layers; ++i) {
      blocks.emplace_back(register_module("block" + std::to_string(i), Block(options)));
    }
    const torch::NoGradGuard no_grad;
    for (auto& item : named_parameters()) {
      if (item.value().dim() == 2) {
        // GPT-2 scales the last layer of each residual branch by 1 / sqrt(2 * layers).
        const bool ends_branch = item.key().find("projection") != std::string::npos ||
                                 item.key().find("down") != std::string::npos;
        const double depth = ends_branch ? std::sqrt(2.0 * static_cast<double>(options.layers)) : 1;
        torch::nn::init::normal_(item.value(), 0.0, 0.02 / depth);
      } else if (item.key().find("bias") != std::string::npos) {
        item.value().zero_();
      }
    }
  }

  /// Maps characters (batch, time) to logits of the next character (batch, time, vocabulary).
  torch::Tensor forward(const torch::Tensor& input) {
    auto x = characters(input) + places(torch::arange(input.size(1), input.device()));
    x = torch::dropout(x, options.dropout, is_training());
    for (auto& block : blocks) {
      x = block(x);
    }
    return torch::linear(norm(x), characters->weight);  // Tied embedding.
  }

  ModelOptions options;
  torch::nn::Embedding characters, places;
  std::vector<Block> blocks;
  torch::nn::LayerNorm norm;
};
TORCH_MODULE(CharModel);

}  // namespace examples
