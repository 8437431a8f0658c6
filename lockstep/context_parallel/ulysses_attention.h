// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group.h"
#include "lockstep/context_parallel/attention_arguments.h"
#include "lockstep/context_parallel/sequence_shard.h"

namespace lockstep {

/// Computes scaled_dot_product_attention over a sequence that is divided over the ranks of `group`.
///
/// Tensors, result and gradient are those of ring_attention(). An all_to_all gives each rank all
/// positions of H/P heads, torch computes their attention, and another all_to_all gives each rank
/// its positions of all heads back. The result of each head is that of one process; the zigzag
/// order is undone in between if `is_causal`. Heads that one rank would share with another are sent
/// to both: key heads are repeated P / gcd(H_kv, P) times, as in DeepSpeed.
///
/// Cost for each rank: 4 all_to_alls in forward, of query, key, value (after repetition) and
/// output, and 4 in backward. Of each tensor's elements (P-1)/P are sent. Memory: full length for
/// H/P heads.
///
/// Collective, also its backward: all ranks must run the same attentions in the same order, and no
/// other thread may use `group` meanwhile. With `dropout_p` each rank draws from its own generator,
/// which is right if ranks have different seeds: they compute different heads. Throws ConfigError
/// if the ranks cannot divide the heads, for arguments that do not fit, and in a backward with
/// create_graph.
///
/// Modelled on Jacobs et al., "DeepSpeed Ulysses", 2023.
at::Tensor ulysses_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const Group& group,
    const SequenceShard& shard,
    const AttentionOptions& options = {});

}  // namespace lockstep
