// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/data/sample/nested.h"

namespace lockstep::data {

struct PadOptions {
  double value = 0;         ///< The value of padding elements.
  bool left = false;        ///< Pads at the beginning, so that sequences end together.
  int64_t multiple_of = 1;  ///< Rounds L up to a multiple of this, for kernels that need it.
};

/// B sequences of different lengths in one tensor; L is the length of the longest.
struct PaddedBatch {
  at::Tensor values;   ///< [B, L, ...]
  at::Tensor lengths;  ///< int64 [B]
  at::Tensor mask;     ///< bool [B, L]: false at padding.
  LOCKSTEP_FIELDS(values, lengths, mask)
};

/// Pads sequences to one length, as torch's pad_sequence, and returns lengths and mask too. Each
/// sequence is [length, ...] and may be empty. Throws ConfigError if there is no sequence, or if
/// sequences differ in more than dimension 0.
PaddedBatch pad_sequences(const std::vector<at::Tensor>& sequences, const PadOptions& options = {});

}  // namespace lockstep::data
