// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/storage/tensor_set.h"

namespace lockstep::cli {

/// How two tensors of equal dtype and shape differ.
struct TensorDifference {
  int64_t elements = 0;  ///< So many have other bits.
  /// The largest distance between two floats in the same place; not a number if one of them is
  /// none. Nothing for dtypes that are no F64, F32, F16 or BF16.
  std::optional<double> largest;
};

/// Nothing if they are the same. Where both lie in equal pieces, equal checksums are enough and
/// nothing is read; else compares all elements, without memory of its own. CheckpointError if
/// what it reads is damaged.
std::optional<TensorDifference> compare(
    const storage::TensorSet& one_set,
    const storage::SetTensor& one,
    const storage::TensorSet& other_set,
    const storage::SetTensor& other);

}  // namespace lockstep::cli
