// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

#include "python/bindings/bindings.h"

namespace lockstep::python {

/// Describes an optimizer class of Python that updates each element of a parameter alone.
struct ElementwiseClass {
  std::string name;
  std::vector<std::string> fields;  ///< State of a parameter's shape, as in its state_dict().
  bool counts_steps = false;        ///< "step" is state, too.
};

/// The parameters of a group, and the options that are numbers, flags or pairs of numbers, by name.
using ElementwiseGroup = std::pair<std::vector<at::Tensor>, py::dict>;

/// Makes an optimizer whose ranks can update shard slices, of a class of the program.
///
/// `update(group, lr, parameters, gradients, state, steps, first)` updates tensors in place: slices
/// of parameters of group `group`, their gradients, state as [field][tensor], the number of updates
/// of each including this one, and whether the state was created for this call.
std::shared_ptr<torch::optim::Optimizer> make_elementwise_optimizer(
    const ElementwiseClass& described,
    const std::vector<ElementwiseGroup>& groups,
    py::object update);

/// Sets the index of a group that was added to such an optimizer. No effect on others.
void set_group_index(torch::optim::OptimizerOptions& options, size_t index);

}  // namespace lockstep::python
