// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "lockstep/context_parallel/sequence_shard.h"

namespace lockstep {

/// Arguments of scaled_dot_product_attention besides the tensors, with its defaults.
struct AttentionOptions {
  bool is_causal = false;
  double dropout_p = 0;
  std::optional<double> scale = std::nullopt;  ///< Default: 1/sqrt(D).
  bool enable_gqa = false;                     ///< Allows fewer key heads than query heads.
};

namespace context_parallel {

/// Holds the tensors of an attention with four dimensions: (B, H, T/P, D).
struct AttentionTensors {
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
};

/// Checks the arguments of an attention over parts of a sequence, and adds a first dimension of 1
/// to tensors of three dimensions. Throws ConfigError, in the name of `where`, for arguments that
/// scaled_dot_product_attention would refuse, and lengths that are not those of `shard`.
AttentionTensors checked_attention_tensors(
    const char* where,
    const AttentionTensors& given,
    const SequenceShard& shard,
    const AttentionOptions& options);

}  // namespace context_parallel
}  // namespace lockstep
