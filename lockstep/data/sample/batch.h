// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/data/sample/nested.h"

namespace lockstep::data {

/// The batch type of this folder's datasets: inputs and targets with one row a sample. Other
/// datasets may use any movable type.
struct Batch {
  at::Tensor data;
  at::Tensor target;
  LOCKSTEP_FIELDS(data, target)
};

}  // namespace lockstep::data
