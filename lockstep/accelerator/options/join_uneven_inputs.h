// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "lockstep/sync/join.h"

namespace lockstep {

/// Options of Accelerator::join_uneven_inputs.
struct JoinUnevenInputs {
  /// Replaces AcceleratorOptions::even_batches for the loaders of this loop.
  std::optional<bool> even_batches = std::nullopt;
  JoinOptions join = {};
};

}  // namespace lockstep
