// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace lockstep {

/// Makes the columns of `matrix` (n, r), r <= n, orthonormal in place. The first keeps its
/// direction; `epsilon` is added to each norm. Columns that depend on earlier ones become
/// orthogonal unit vectors, or zero, and never affect the others. By Gram-Schmidt, done twice:
/// Giraud et al., "The loss of orthogonality in the Gram-Schmidt orthogonalization process", 2005.
/// No device synchronisation.
void orthonormalize(const at::Tensor& matrix, double epsilon);

/// Fills `matrix` with normal random numbers that depend only on (seed, step, index); torch's
/// random state is unchanged.
void fill_normal(const at::Tensor& matrix, uint64_t seed, int64_t step, int64_t index);

}  // namespace lockstep
