// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "python/bindings/bindings.h"

namespace lockstep::pipeline {
class Stage;
}  // namespace lockstep::pipeline

namespace lockstep::python {

/// Returns the number of stages of a PipelineModule; 1 for another module. The caller has the GIL.
int pipeline_stages_of(const py::object& module);

/// Connects this process's stage of a PipelineModule with those of `line`; null for another module.
/// The caller has the GIL. Collective in `line`.
std::shared_ptr<pipeline::Stage> connect_pipeline(const py::object& module, const Group& line);

}  // namespace lockstep::python
