// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/enum_words.h"

namespace lockstep {
namespace ds_config {

/// The dimension of a weight (outputs x inputs) that ranks divide.
enum class LayerPartition { kColumn, kRow, kSkip };

/// Says how ranks divide layers, by the names of their weights; DeepSpeed's TPLayerSpec.
struct LayerSpec {
  /// Regular expressions of the beginning of a name, such as "layers.0.up.weight".
  std::vector<std::string> patterns = {};
  LayerPartition partition = LayerPartition::kColumn;  ///< kColumn divides the outputs.
  /// The sizes of layers that a layer fuses, along the divided dimension. Empty: one layer; all 1:
  /// layers of equal sizes.
  std::vector<int64_t> fused = {};
  bool gather_output = false;   ///< kColumn: each rank returns all outputs.
  bool grad_allreduce = false;  ///< kSkip: ranks compute parts of the gradient, which are added.

  bool operator==(const LayerSpec&) const = default;
};

/// Returns DeepSpeed's names of models with a preset.
const std::vector<std::string>& preset_models();

/// Returns the layers of DeepSpeed's preset for a model. The name is one of preset_models().
std::vector<LayerSpec> preset_layers(const std::string& model);

}  // namespace ds_config

template <>
inline constexpr std::array<std::string_view, 3> kWordsOf<ds_config::LayerPartition> = {
    "column", "row", "skip"};

}  // namespace lockstep
