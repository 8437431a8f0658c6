// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/data/dataset/nested.h"

namespace lockstep::data {

/// What the datasets of this folder hand out: inputs and targets with the same dimension 0, one row
/// a sample. A dataset of one's own may use any other movable type.
struct Batch {
  at::Tensor data;
  at::Tensor target;
  LOCKSTEP_FIELDS(data, target)
};

}  // namespace lockstep::data
