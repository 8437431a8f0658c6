// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/transport/transport.h"

namespace lockstep::comm {

/// Throws ConfigError for a tensor outside CPU memory. `subject`, for the error: "Gloo moves".
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
