// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/storage/tensor_set.h"

namespace lockstep::cli {

/// The difference of two tensors of equal dtype and shape.
struct TensorDifference {
  int64_t elements = 0;  ///< The number of elements with different bits.
  /// The largest absolute difference of two elements; NaN if one of them is. Nothing for dtypes
  /// other than F64, F32, F16 and BF16.
  std::optional<double> largest;
};

/// Compares two tensors; returns nothing if they are equal. Reads no data if both have equal slices
/// with equal checksums, else compares all elements in place. Throws CheckpointError for damaged
/// data.
std::optional<TensorDifference> compare(
    const storage::TensorSet& one_set,
    const storage::SetTensor& one,
    const storage::TensorSet& other_set,
    const storage::SetTensor& other);

}  // namespace lockstep::cli
