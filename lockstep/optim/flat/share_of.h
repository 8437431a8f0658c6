// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/optim/flat/rule.h"

namespace lockstep::optim {

/// The part of `batch` that one of several ranks updates; together they update all of it, each
/// element once. Of an elementwise rule each gets an equal stretch of every tensor, in whole cache
/// lines and whole vectors, so that every element has the bits that it has in an update of all; of
/// other rules whole tensors, as equal as these allow. May be empty.
Batch share_of(const Batch& batch, bool elementwise, int rank, int size);

}  // namespace lockstep::optim
