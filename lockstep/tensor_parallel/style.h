// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

/// Selects how the ranks of a tp line divide a module.
enum class TensorStyle {
  /// Linear: each rank has some of the output features, whose columns it returns.
  kColwise,
  /// The same, but each rank returns all columns: one all_gather more. For the last layer.
  kColwiseGather,
  /// Linear: each rank has some of the input features, which a colwise layer returned. The results
  /// are added: one all_reduce.
  kRowwise,
  /// The same, but the input has all features, as that of a colwise_gather layer: each rank takes
  /// its
  /// part.
  kRowwiseSplitInput,
  /// Embedding: each rank has some of the rows (words). The results are added. A Linear that has
  /// the
  /// same weight is kColwiseGather.
  kEmbedding,
  /// A module that computes with the rank's part of the sequence: a norm. All ranks have its
  /// parameters, whose gradients are added. An Embedding, of positions, returns the rank's part.
  kSequence,
  /// All ranks have the module, and compute the same with it.
  kWhole,
  /// All ranks have the module, which computes with the rank's part of the features, such as a norm
  /// of each head. The gradients are added.
  kWholeSumGradient,
  /// Any module that computes with its part by itself, such as those of torch's DTensors: each rank
  /// has some rows of all its parameters. Communicates nothing.
  kOwnRows,
  /// The same: each rank has some columns of its matrices. All have its other parameters.
  kOwnColumns
};

/// Gives modules a style.
///
///   {"blocks.*.qkv", TensorStyle::kColwise, {1, 1, 1}}
struct TensorRule {
  /// A module's name in the model; `*` stands for any one part between dots, as in transformers'
  /// tp_plan.
  std::string modules;
  TensorStyle style;
  /// The relative sizes of layers that the module fuses, such as q, k and v. Each of them is
  /// divided. Empty: one layer.
  std::vector<int64_t> fused = {};
};

using TensorPlan = std::vector<TensorRule>;

/// Returns "colwise", "colwise_gather", "rowwise", "rowwise_split_input", "embedding", "sequence",
/// "whole", "whole_sum_gradient", "own_rows" or "own_columns".
const char* tensor_style_name(TensorStyle style);
/// Reads such a name, or transformers' for the same: "colwise_rep" and "colwise_gather_output",
/// "embedding_rowwise", "sequence_parallel", "replicate",
/// "replicated_with_grad_allreduce". Throws ConfigError, which names `where`,
/// for another.
TensorStyle parse_tensor_style(const std::string& name, const std::string& where);

/// Returns whether the module `name` is one of those that `pattern` describes.
bool matches_modules(const std::string& pattern, const std::string& name);

}  // namespace lockstep
