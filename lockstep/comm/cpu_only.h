// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/transport.h"

namespace lockstep::comm {

/// ConfigError for a tensor that is not in the CPU's memory. `subject`: "Gloo moves", for the
/// error.
inline void refuse_other_devices(const Collective& collective, const char* subject) {
  for (const at::Tensor* tensor : {&collective.input, &collective.output}) {
    if (tensor->defined() && !tensor->is_cpu()) {
      throw ConfigError(
          name_of(collective.op),
          fmt::format("{} CPU tensors only; got one on {}", subject, tensor->device().str()));
    }
  }
}

}  // namespace lockstep::comm
