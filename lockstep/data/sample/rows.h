// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

namespace lockstep::data {

/// Copies source[indices] row by row into a new contiguous CPU tensor [indices.size(), ...] of the
/// same dtype.
///
/// Runs memcpy on the calling thread. at::index_select may start OpenMP threads, which would
/// compete with the model's in a loader's worker. No gradient flows. Thread-safe as long as no
/// thread writes to `source`.
///
/// Throws ConfigError for an index outside 0 .. size(0) - 1. Throws ConfigError if `source` has no
/// dimension 0, is not on the CPU, or its rows are not contiguous.
at::Tensor gather_rows(const at::Tensor& source, std::span<const int64_t> indices);

/// Throws ConfigError, prefixed with `where`, unless gather_rows can read from `source`.
void require_rows(const char* where, const at::Tensor& source);

/// Throws ConfigError, prefixed with `where`, unless every index is from 0 to rows - 1.
void require_indices(const char* where, std::span<const int64_t> indices, int64_t rows);

}  // namespace lockstep::data
