// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/comm/tensor/named_tensor.h"

namespace lockstep::checkpoint {

/// Groups the indices of `tensors` that are one tensor under several names, as tied weights are:
/// the same elements in memory, with equal dtype, shape and strides. Each index is in one group, in
/// the given order. Tensors that share memory differently, such as views into one flat buffer, are
/// different, and so are those without elements.
std::vector<std::vector<size_t>> tied_groups(const NamedTensors& tensors);

}  // namespace lockstep::checkpoint
