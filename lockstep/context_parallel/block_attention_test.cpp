// SPDX-License-Identifier: Apache-2.0
#include "lockstep/context_parallel/block_attention.h"

#include <cmath>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "lockstep/context_parallel/test_attention.h"

namespace lockstep::context_parallel {
namespace {

/// Tolerance of values of about 1, by dtype.
double tolerance_of(at::ScalarType dtype) {
  return dtype == at::kDouble ? 1e-12 : dtype == at::kFloat ? 1e-6 : 1e-2;
}

TEST(BlockAttention, FlashAndMathKernelsAgree) {
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (const bool is_causal : {false, true}) {
      for (const int64_t key_heads : {4, 2, 1}) {
        const AttentionRun it = full_inputs({.key_heads = key_heads, .dtype = dtype, .length = 11});
        const BlockSettings settings{.is_causal = is_causal, .scale = 0.3};
        const BlockOutput flash = block_attention(it.query, it.key, it.value, settings);
        const BlockOutput math = math_block_attention(it.query, it.key, it.value, settings);
        const double tolerance = tolerance_of(dtype);
        EXPECT_LE(difference(flash.output, math.output), tolerance) << dtype;
        EXPECT_LE(difference(flash.log_sum_exp, math.log_sum_exp), tolerance) << dtype;
        const BlockGradients quick = block_attention_backward(
            it.output_gradient, it.query, it.key, it.value, flash, settings);
        const BlockGradients slow = math_block_attention_backward(
            it.output_gradient, it.query, it.key, it.value, math, settings);
        EXPECT_LE(difference(quick.query, slow.query), tolerance) << dtype;
        EXPECT_LE(difference(quick.key, slow.key), tolerance) << dtype;
        EXPECT_LE(difference(quick.value, slow.value), tolerance) << dtype;
      }
    }
  }
}

TEST(BlockAttention, MathKernelHasTheGradientsOfAutograd) {
  const AttentionCase it{.options = {.is_causal = true}, .value_features = 6};
  const AttentionRun expected = one_process(it);
  const auto gradients = expected.gradients();
  const BlockSettings settings{.is_causal = true, .scale = 1 / std::sqrt(8.0)};
  const at::Tensor query = expected.query.detach();
  const at::Tensor key = expected.key.detach();
  const at::Tensor value = expected.value.detach();
  const BlockOutput output = block_attention(query, key, value, settings);
  EXPECT_LE(difference(output.output, expected.output), 1e-12);
  const BlockGradients got =
      block_attention_backward(expected.output_gradient, query, key, value, output, settings);
  EXPECT_LE(difference(got.query, gradients[0]), 1e-12);
  EXPECT_LE(difference(got.key, gradients[1]), 1e-12);
  EXPECT_LE(difference(got.value, gradients[2]), 1e-12);
}

TEST(BlockAttention, MergesBlocksOfKeysAlsoForSomeRowsOnly) {
  const AttentionRun it = full_inputs({.length = 12});
  const BlockSettings settings{.scale = 0.4};
  const auto block = [&](int64_t begin, int64_t keys, int64_t row) {
    return block_attention(
        it.query.slice(2, row),
        it.key.narrow(2, begin, keys),
        it.value.narrow(2, begin, keys),
        settings);
  };
  BlockOutput merged = block(0, 5, 0);
  merge_block(merged, block(5, 4, 0), 0);
  merge_block(merged, block(9, 3, 8), 8);
  const BlockOutput first_rows = block(0, 9, 0);
  const BlockOutput last_rows = block(0, 12, 8);
  EXPECT_LE(difference(merged.output.slice(2, 0, 8), first_rows.output.slice(2, 0, 8)), 1e-14);
  EXPECT_LE(difference(merged.output.slice(2, 8), last_rows.output), 1e-14);
  EXPECT_LE(difference(merged.log_sum_exp.slice(2, 8), last_rows.log_sum_exp), 1e-14);
  EXPECT_GT(difference(merged.output.slice(2, 8), first_rows.output.slice(2, 8)), 1e-3);
}

}  // namespace
}  // namespace lockstep::context_parallel
