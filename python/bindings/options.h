// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/accelerator/options/options.h"
#include "python/bindings/bindings.h"

namespace lockstep::python {

/// Reads AcceleratorOptions from a dict with the names of their members. Throws ConfigError for an
/// unknown name or value.
AcceleratorOptions accelerator_options(const py::dict& values);

/// Returns the dtype with this name: "fp32", "fp16" or "bf16". Throws ConfigError for another.
at::ScalarType dtype_of(const std::string& name);

}  // namespace lockstep::python
