// SPDX-License-Identifier: Apache-2.0
#include "lockstep/context_parallel/block_attention.h"

#include <limits>
#include <tuple>

#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>

namespace lockstep::context_parallel {
namespace {

bool has_flash_kernel(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  return query.is_cpu() && query.size(3) == value.size(3) && query.numel() > 0 && key.numel() > 0;
}

/// The flash kernel needs elements of a row next to each other.
at::Tensor with_dense_rows(const at::Tensor& tensor) {
  return tensor.stride(-1) == 1 ? tensor : tensor.contiguous();
}

/// Repeats key heads, so that each query head has its own, in the accumulator dtype.
at::Tensor for_each_query_head(const at::Tensor& keys, int64_t heads) {
  const at::Tensor wide = keys.to(accumulator_dtype(keys.scalar_type()));
  return heads == keys.size(1) ? wide : wide.repeat_interleave(heads / keys.size(1), 1);
}

/// Adds the gradients of the query heads that share a key head.
at::Tensor sum_to_key_heads(const at::Tensor& gradient, int64_t key_heads) {
  const int64_t heads = gradient.size(1);
  return heads == key_heads ? gradient
                            : gradient.unflatten(1, {key_heads, heads / key_heads}).sum(2);
}

/// Returns scale * q k^T (B, H, Tq, Tk), with -inf where the mask is.
at::Tensor scores_of(const at::Tensor& query, const at::Tensor& keys, const BlockSettings& it) {
  at::Tensor scores =
      at::matmul(query.to(keys.scalar_type()), keys.transpose(-2, -1)).mul_(it.scale);
  if (it.is_causal) {
    const at::Tensor future =
        at::ones({query.size(2), keys.size(2)}, query.options().dtype(at::kBool)).triu_(1);
    scores.masked_fill_(future, -std::numeric_limits<double>::infinity());
  }
  return scores;
}

}  // namespace

at::ScalarType accumulator_dtype(at::ScalarType dtype) {
  return dtype == at::kHalf || dtype == at::kBFloat16 ? at::kFloat : dtype;
}

BlockOutput block_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const BlockSettings& settings) {
  if (!has_flash_kernel(query, key, value)) {
    return math_block_attention(query, key, value, settings);
  }
  BlockOutput result;
  std::tie(result.output, result.log_sum_exp) = at::_scaled_dot_product_flash_attention_for_cpu(
      with_dense_rows(query),
      with_dense_rows(key),
      with_dense_rows(value),
      /*dropout_p=*/0,
      settings.is_causal,
      /*attn_mask=*/{},
      settings.scale);
  return result;
}

BlockGradients block_attention_backward(
    const at::Tensor& gradient,
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const BlockOutput& merged,
    const BlockSettings& settings) {
  if (!has_flash_kernel(query, key, value)) {
    return math_block_attention_backward(gradient, query, key, value, merged, settings);
  }
  BlockGradients result;
  std::tie(result.query, result.key, result.value) =
      at::_scaled_dot_product_flash_attention_for_cpu_backward(
          with_dense_rows(gradient),
          with_dense_rows(query),
          with_dense_rows(key),
          with_dense_rows(value),
          with_dense_rows(merged.output),
          merged.log_sum_exp,
          /*dropout_p=*/0,
          settings.is_causal,
          /*attn_mask=*/{},
          settings.scale);
  return result;
}

BlockOutput math_block_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const BlockSettings& settings) {
  const at::Tensor scores = scores_of(query, for_each_query_head(key, query.size(1)), settings);
  BlockOutput result;
  result.log_sum_exp = at::logsumexp(scores, {-1});
  result.output = at::matmul(
      at::exp(scores - result.log_sum_exp.unsqueeze(-1)),
      for_each_query_head(value, query.size(1)));
  return result;
}

BlockGradients math_block_attention_backward(
    const at::Tensor& gradient,
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const BlockOutput& merged,
    const BlockSettings& settings) {
  const auto dtype = accumulator_dtype(query.scalar_type());
  const at::Tensor keys = for_each_query_head(key, query.size(1));
  const at::Tensor values = for_each_query_head(value, query.size(1));
  const at::Tensor wide = gradient.to(dtype);
  const at::Tensor weights =
      at::exp(scores_of(query, keys, settings) - merged.log_sum_exp.unsqueeze(-1));
  const at::Tensor mean = (wide * merged.output.to(dtype)).sum(-1, /*keepdim=*/true);
  const at::Tensor scores =
      (at::matmul(wide, values.transpose(-2, -1)) - mean).mul_(weights).mul_(settings.scale);
  return {
      .query = at::matmul(scores, keys),
      .key = sum_to_key_heads(at::matmul(scores.transpose(-2, -1), query.to(dtype)), key.size(1)),
      .value = sum_to_key_heads(at::matmul(weights.transpose(-2, -1), wide), value.size(1))};
}

void merge_block(BlockOutput& merged, const BlockOutput& block, int64_t begin) {
  const int64_t rows = block.log_sum_exp.size(2);
  at::Tensor output = merged.output.narrow(2, begin, rows);
  at::Tensor log_sum_exp = merged.log_sum_exp.narrow(2, begin, rows);
  const at::Tensor both = at::logaddexp(log_sum_exp, block.log_sum_exp);
  output.mul_(at::exp(log_sum_exp - both).unsqueeze(-1));
  output.addcmul_(
      block.output.to(output.scalar_type()), at::exp(block.log_sum_exp - both).unsqueeze(-1));
  log_sum_exp.copy_(both);
}

}  // namespace lockstep::context_parallel
