// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

namespace lockstep::data {

/// source[indices], copied row by row: a new contiguous CPU tensor [indices.size(), ...] of the
/// same dtype.
///
/// at::index_select may start OpenMP threads, which in a loader's worker would compete with the
/// model's own; this is memcpy on the calling thread. No gradient flows. Thread-safe as long as
/// nobody writes to `source`.
///
/// ConfigError for an index outside 0 .. size(0) - 1, and for a source that has no dimension 0, is
/// not on the CPU, or whose rows are not contiguous.
at::Tensor gather_rows(const at::Tensor& source, std::span<const int64_t> indices);

/// ConfigError in the name of `where` unless gather_rows can read from `source`.
void require_rows(const char* where, const at::Tensor& source);

/// ConfigError in the name of `where` unless every index is from 0 to rows - 1.
void require_indices(const char* where, std::span<const int64_t> indices, int64_t rows);

}  // namespace lockstep::data
