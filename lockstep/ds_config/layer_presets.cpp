// SPDX-License-Identifier: Apache-2.0
// The layers of AutoTPPresets in DeepSpeed 0.19.8.
#include <algorithm>
#include <utility>

#include "lockstep/ds_config/layer_specs.h"

namespace lockstep::ds_config {
namespace {

using Layers = std::vector<LayerSpec>;

LayerSpec column(std::string pattern, std::vector<int64_t> fused = {}) {
  return {.patterns = {std::move(pattern)}, .fused = std::move(fused)};
}

LayerSpec row(std::string pattern) {
  return {.patterns = {std::move(pattern)}, .partition = LayerPartition::kRow};
}

LayerSpec skip(std::string pattern) {
  return {.patterns = {std::move(pattern)}, .partition = LayerPartition::kSkip};
}

struct Preset {
  std::string model;
  Layers layers;
};

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = [] {
    const LayerSpec output = row(R"(.*\.self_attn\.o_proj\.weight$)");
    const LayerSpec inputs = column(R"(.*\.self_attn\.[qkv]_proj\.weight$)");
    const LayerSpec down = row(R"(.*\.mlp\.down_proj\.weight$)");
    const LayerSpec up = column(R"(.*\.mlp\.(up|gate)_proj\.weight$)");
    const char* const dense = R"(.*\.self_attention\.dense\.weight$)";
    const char* const qkv = R"(.*\.self_attention\.query_key_value\.weight$)";
    const char* const dense_down = R"(.*\.mlp\.dense_4h_to_h\.weight$)";
    const char* const dense_up = R"(.*\.mlp\.dense_h_to_4h\.weight$)";
    return std::vector<Preset>{
        {"llama", {output, inputs, down, up}},
        {"bloom", {row(dense), column(qkv), row(dense_down), column(dense_up)}},
        {"chatglm",
         {row(dense), column(qkv, {1, 1, 1}), row(dense_down), column(dense_up, {1, 1})}},
        {"mixtral",
         {output,
          inputs,
          row(R"(.*\.block_sparse_moe\.experts\.\d+\.w2\.weight$)"),
          column(R"(.*\.block_sparse_moe\.experts\.\d+\.w[13]\.weight$)"),
          skip(R"(.*\.block_sparse_moe\.gate\.weight$)")}},
        {"deepseek_v2",
         {output,
          skip(R"(.*\.self_attn\.(q_a_proj|kv_a_proj_with_mqa)\.weight$)"),
          column(R"(.*\.self_attn\.(q_b_proj|kv_b_proj)\.weight$)"),
          row(R"(.*\.mlp\.experts\.\d+\.down_proj\.weight$)"),
          column(R"(.*\.mlp\.experts\.\d+\.(up|gate)_proj\.weight$)"),
          skip(R"(.*\.mlp\.gate\.weight$)"),
          row(R"(.*\.mlp\.shared_experts\.down_proj\.weight$)"),
          column(R"(.*\.mlp\.shared_experts\.(up|gate)_proj\.weight$)")}},
        {"qwen2", {output, inputs, down, up}},
        {"phi3",
         {output,
          column(R"(.*\.self_attn\.qkv_proj\.weight$)", {1, 1, 1}),
          down,
          column(R"(.*\.mlp\.gate_up_proj\.weight$)", {1, 1})}}};
  }();
  return all;
}

}  // namespace

const std::vector<std::string>& preset_models() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Preset& preset : presets()) {
      all.push_back(preset.model);
    }
    return all;
  }();
  return names;
}

std::vector<LayerSpec> preset_layers(const std::string& model) {
  return std::ranges::find(presets(), model, &Preset::model)->layers;
}

}  // namespace lockstep::ds_config
