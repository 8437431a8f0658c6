// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor_parallel/style.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text/split.h"
#include "lockstep/base/text/suggest.h"

namespace lockstep {
namespace {

struct StyleName {
  const char* name;
  TensorStyle style;
};

/// The first name of each style is its own.
constexpr std::array kNames = {
    StyleName{"colwise", TensorStyle::kColwise},
    StyleName{"colwise_gather", TensorStyle::kColwiseGather},
    StyleName{"rowwise", TensorStyle::kRowwise},
    StyleName{"rowwise_split_input", TensorStyle::kRowwiseSplitInput},
    StyleName{"embedding", TensorStyle::kEmbedding},
    StyleName{"sequence", TensorStyle::kSequence},
    StyleName{"whole", TensorStyle::kWhole},
    StyleName{"whole_sum_gradient", TensorStyle::kWholeSumGradient},
    StyleName{"own_rows", TensorStyle::kOwnRows},
    StyleName{"own_columns", TensorStyle::kOwnColumns},
    StyleName{"colwise_rep", TensorStyle::kColwiseGather},
    StyleName{"rowwise_rep", TensorStyle::kRowwiseSplitInput},
    StyleName{"colwise_gather_output", TensorStyle::kColwiseGather},
    StyleName{"embedding_rowwise", TensorStyle::kEmbedding},
    StyleName{"sequence_parallel", TensorStyle::kSequence},
    StyleName{"replicate", TensorStyle::kWhole},
    StyleName{"replicated_with_grad_allreduce", TensorStyle::kWholeSumGradient}};

}  // namespace

const char* tensor_style_name(TensorStyle style) {
  return std::find_if(
             kNames.begin(), kNames.end(), [&](const StyleName& row) { return row.style == style; })
      ->name;
}

TensorStyle parse_tensor_style(const std::string& name, const std::string& where) {
  std::vector<std::string> known;
  for (const StyleName& row : kNames) {
    if (name == row.name) {
      return row.style;
    }
    known.emplace_back(row.name);
  }
  throw ConfigError(
      where,
      fmt::format(
          "the style '{}' is unknown; expected colwise, colwise_gather, rowwise, "
          "rowwise_split_input, "
          "embedding, sequence, whole, whole_sum_gradient, own_rows or own_columns{}",
          name,
          did_you_mean(name, known)));
}

bool matches_modules(const std::string& pattern, const std::string& name) {
  const std::vector<std::string> wanted = split(pattern, '.');
  const std::vector<std::string> parts = split(name, '.');
  return std::equal(
      wanted.begin(),
      wanted.end(),
      parts.begin(),
      parts.end(),
      [](const auto& want, const auto& part) { return want == "*" || want == part; });
}

}  // namespace lockstep
