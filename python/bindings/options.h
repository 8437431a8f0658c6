// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/accelerator/options/options.h"
#include "python/bindings/bindings.h"

namespace lockstep::python {

/// Reads AcceleratorOptions from a dict with the names of their members. Throws ConfigError for an
/// unknown name or value.
AcceleratorOptions accelerator_options(const py::dict& values);

/// Returns the words of an option, a member of FsdpPlugin, in torch's order. Empty for others.
std::vector<std::string> fsdp_words(const std::string& member);

}  // namespace lockstep::python
