// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

/// Attention of queries to one block of keys, with the log-sum-exp by which blocks are merged.
namespace lockstep::context_parallel {

/// Queries are (B, H, Tq, D), keys (B, H_kv, Tk, D), values (B, H_kv, Tk, Dv); H_kv divides H, and
/// query head h uses key head h / (H / H_kv). A causal block has Tq == Tk.
struct BlockOutput {
  at::Tensor output;       ///< (B, H, Tq, Dv), normalised over this block's keys.
  at::Tensor log_sum_exp;  ///< (B, H, Tq), of the scaled scores, accumulator dtype.
};

struct BlockGradients {
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
};

/// Settings of scaled_dot_product_attention, resolved.
struct BlockSettings {
  bool is_causal = false;
  double scale = 1;
};

/// Returns the dtype of sums: float32 for float16 and bfloat16, else `dtype`.
at::ScalarType accumulator_dtype(at::ScalarType dtype);

/// Computes by torch's CPU flash kernel if it takes these tensors, else by
/// math_block_attention(). No autograd.
BlockOutput block_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const BlockSettings& settings);

/// Returns this block's part of the gradients. `output` and `log_sum_exp` are those of all blocks,
/// merged.
BlockGradients block_attention_backward(
    const at::Tensor& gradient,
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const BlockOutput& merged,
    const BlockSettings& settings);

/// Do the same by ATen's matrix products: the slow reference, and the implementation for devices
/// and shapes without the flash kernel. Memory: B*H*Tq*Tk scores. Results have the accumulator
/// dtype.
BlockOutput math_block_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const BlockSettings& settings);
BlockGradients math_block_attention_backward(
    const at::Tensor& gradient,
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const BlockOutput& merged,
    const BlockSettings& settings);

/// Adds a block to `merged`, in place, whose rows from `begin` on are those of the block. `merged`
/// has the accumulator dtype.
void merge_block(BlockOutput& merged, const BlockOutput& block, int64_t begin);

}  // namespace lockstep::context_parallel
