// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/data/dataset/nested.h"

namespace lockstep::data {

struct PadOptions {
  double value = 0;         ///< What is put where a sequence has nothing.
  bool left = false;        ///< Sequences end together instead of beginning together.
  int64_t multiple_of = 1;  ///< L is rounded up to a multiple of it, for kernels that like that.
};

/// Sequences of different lengths as one tensor: B of them, the longest of length L.
struct PaddedBatch {
  at::Tensor values;   ///< [B, L, ...]
  at::Tensor lengths;  ///< int64 [B]
  at::Tensor mask;     ///< bool [B, L]: true where `values` is of a sequence.
  LOCKSTEP_FIELDS(values, lengths, mask)
};

/// Each sequence is [length, ...] and may be empty; torch's pad_sequence with its lengths and mask.
/// ConfigError if there is none, or they differ in more than dimension 0.
PaddedBatch pad_sequences(const std::vector<at::Tensor>& sequences, const PadOptions& options = {});

}  // namespace lockstep::data
