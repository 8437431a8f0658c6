// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "lockstep/context_parallel/attention_arguments.h"
#include "lockstep/context_parallel/sequence_shard.h"

namespace lockstep::context_parallel {

/// Returns values between -`amplitude` and `amplitude` that do not use torch's generator, which
/// ranks as threads would share.
inline at::Tensor sines(
    at::IntArrayRef sizes,
    double phase,
    at::ScalarType dtype = at::kDouble,
    double amplitude = 1.5) {
  const at::Tensor index = at::arange(c10::multiply_integers(sizes), at::kDouble);
  return (at::sin(index * 1.7 + index * index * 0.01 + phase) * amplitude).reshape(sizes).to(dtype);
}

/// Returns the largest difference, relative to the largest value of `expected` if that is above 1.
inline double difference(const at::Tensor& got, const at::Tensor& expected) {
  const at::Tensor right = expected.detach().to(at::kDouble);
  const double size = std::max(1.0, right.abs().max().item<double>());
  return (got.detach().to(at::kDouble) - right).abs().max().item<double>() / size;
}

/// Describes an attention over a full sequence.
struct AttentionCase {
  int ranks = 2;
  SequenceLayout layout = SequenceLayout::kContiguous;
  AttentionOptions options = {};
  int64_t heads = 4;
  int64_t key_heads = 4;
  int64_t value_features = 8;
  at::ScalarType dtype = at::kDouble;
  int64_t length = 24;

  std::string text() const {
    return fmt::format(
        "{} ranks, {}, {}, {}/{} heads, {} value features, {}",
        ranks,
        layout == SequenceLayout::kZigzag ? "zigzag" : "contiguous",
        options.is_causal ? "causal" : "full",
        heads,
        key_heads,
        value_features,
        c10::toString(dtype));
  }
};

/// Holds inputs, result and gradients of an attention.
struct AttentionRun {
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
  at::Tensor output_gradient;
  at::Tensor output;

  /// Runs backward, and returns the gradients of query, key and value.
  std::vector<at::Tensor> gradients() const {
    output.backward(output_gradient);
    return {query.grad(), key.grad(), value.grad()};
  }
};

/// Returns the inputs of the full sequence.
inline AttentionRun full_inputs(const AttentionCase& it) {
  constexpr int64_t kBatch = 2;
  constexpr int64_t kFeatures = 8;
  AttentionRun run;
  run.query = sines({kBatch, it.heads, it.length, kFeatures}, 0.3, it.dtype);
  run.key = sines({kBatch, it.key_heads, it.length, kFeatures}, 1.1, it.dtype);
  run.value = sines({kBatch, it.key_heads, it.length, it.value_features}, 2.7, it.dtype);
  run.output_gradient = sines({kBatch, it.heads, it.length, it.value_features}, 0.9, it.dtype);
  return run;
}

/// Computes the attention in one process. 16-bit inputs are computed in float32.
inline AttentionRun one_process(const AttentionCase& it) {
  AttentionRun run = full_inputs(it);
  const auto dtype = it.dtype == at::kBFloat16 || it.dtype == at::kHalf ? at::kFloat : it.dtype;
  for (at::Tensor* tensor : {&run.query, &run.key, &run.value}) {
    *tensor = tensor->to(dtype).clone().requires_grad_();
  }
  run.output_gradient = run.output_gradient.to(dtype);
  run.output = at::scaled_dot_product_attention(
      run.query,
      run.key,
      run.value,
      {},
      0,
      it.options.is_causal,
      it.options.scale,
      it.options.enable_gqa);
  return run;
}

/// Returns a rank's part of `full`, with inputs that are leaves.
inline AttentionRun part_of(const AttentionRun& full, const SequenceShard& shard) {
  const auto leaf = [&](const at::Tensor& tensor) {
    return shard.shard_sequence(tensor.detach(), 2).clone().requires_grad_();
  };
  AttentionRun run;
  run.query = leaf(full.query);
  run.key = leaf(full.key);
  run.value = leaf(full.value);
  run.output_gradient = shard.shard_sequence(full.output_gradient, 2);
  return run;
}

/// Returns the largest difference between a rank's results and its part of those of one process:
/// of the output, and of the gradients of query, key and value.
inline std::vector<double> differences(
    const AttentionRun& run, const AttentionRun& expected, const SequenceShard& shard) {
  std::vector<double> result{difference(run.output, shard.shard_sequence(expected.output, 2))};
  const std::vector<at::Tensor> got = run.gradients();
  const std::vector<at::Tensor> full{
      expected.query.grad(), expected.key.grad(), expected.value.grad()};
  for (size_t i = 0; i < got.size(); ++i) {
    result.push_back(difference(got[i], shard.shard_sequence(full[i], 2)));
  }
  return result;
}

inline void expect_within(
    const std::vector<double>& differences, double tolerance, const std::string& text) {
  const std::vector<std::string> names{"output", "query", "key", "value"};
  for (size_t i = 0; i < differences.size(); ++i) {
    EXPECT_LE(differences[i], tolerance) << names[i] << " of " << text;
  }
}

}  // namespace lockstep::context_parallel
