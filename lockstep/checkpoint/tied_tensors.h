// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/comm/named_tensor.h"

namespace lockstep::checkpoint {

/// Which of `tensors`, by their place, are one and the same: the same elements in memory, with the
/// same dtype, shape and strides, as tied weights are. Each in one group, groups and what is in
/// them in the order given. Tensors that share memory in any other way, such as views into one flat
/// buffer, are different ones, and so are those without elements.
std::vector<std::vector<size_t>> tied_groups(const NamedTensors& tensors);

}  // namespace lockstep::checkpoint
