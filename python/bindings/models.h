// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/accelerator/prepare/preparer.h"
#include "lockstep/comm/tensor/named_tensor.h"
#include "python/bindings/bindings.h"

namespace lockstep::python {

/// Returns an nn.Module as prepare() takes it. Its buffers are the persistent ones. The module must
/// be alive when its tensors are read.
internal::GivenModel given_model(const py::object& module);

/// Returns the largest number of processes that divide the experts of a layer; 1 without any. The
/// caller has the GIL.
int expert_ranks_of(const py::object& module);

/// Gives layers of experts the group of processes that divide them. The caller has the GIL.
void give_expert_group(const py::object& module, const Group& group);

/// Returns the identity of a module in an Accelerator.
const void* id_of(const py::handle& module);

/// Returns the parameters, with or without frozen ones, then the persistent buffers.
NamedTensors tensors_of_python(const py::object& module, bool with_frozen = true);

}  // namespace lockstep::python
