// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/optim/flat/rule.h"

namespace lockstep::optim {

/// Returns the part of `batch` that one of several ranks updates; together they update each element
/// once. For an elementwise rule each gets an equal range of every tensor, in full cache lines and
/// vectors, so that results are bit-exact with one update of all; for other rules complete tensors,
/// as evenly as possible. May be empty.
Batch share_of(const Batch& batch, bool elementwise, int rank, int size);

}  // namespace lockstep::optim
