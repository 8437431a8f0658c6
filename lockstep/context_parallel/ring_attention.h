// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group.h"
#include "lockstep/context_parallel/attention_arguments.h"
#include "lockstep/context_parallel/sequence_shard.h"

namespace lockstep {

/// Computes scaled_dot_product_attention over a sequence that is divided over the ranks of `group`.
///
/// `query` is (B, H, T/P, D), `key` (B, H_kv, T/P, D), `value` (B, H_kv, T/P, Dv), of one floating
/// point dtype; without B they are (H, T/P, D). Returns this rank's part, (B, H, T/P, Dv). Keys and
/// values go around the ranks. Each rank computes its queries' attention to one block of them while
/// the next one arrives, and merges the blocks by their log-sum-exp, in float32 for 16-bit dtypes.
/// No rank ever has more than two blocks of keys. Equals one process up to the order of sums.
/// The gradient is that of the sum of all ranks' losses.
///
/// Cost for each rank, in elements sent, with N = B * H_kv * T/P * (D + Dv): (P-1) * N in forward,
/// in the dtype of `key`; 2 * (P-1) * N in backward, half of them gradients, which are float32 for
/// 16-bit dtypes. Time: with kZigzag equal on all ranks under a causal mask; with kContiguous the
/// last rank computes P blocks and the first one. Kernel: torch's flash attention on CPUs if D ==
/// Dv; else matrix products, with B * H * (T/P)^2 scores in memory. Messages of device tensors go
/// through host memory.
///
/// Collective, also its backward: all ranks must run the same attentions in the same order, and no
/// other thread may use `group` meanwhile. Messages carry a checksum of shapes and arguments, so
/// ranks that differ get a CommError. Throws ConfigError for dropout_p > 0, arguments that do not
/// fit, and a backward with create_graph.
///
/// Modelled on Liu et al., "Ring Attention with Blockwise Transformers", 2023, and Zhu's
/// ring-flash-attention.
at::Tensor ring_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const Group& group,
    const SequenceShard& shard,
    const AttentionOptions& options = {});

}  // namespace lockstep
