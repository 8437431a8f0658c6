// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "lockstep/optim/rule.h"

namespace lockstep::optim {

/// Calls `update` with fp32 copies of what `batch` has in fp16 or bf16, and rounds what it gives,
/// once; so a kernel that would round after each operation does not. Where parameters are wider it
/// gets `batch` itself. For elementwise rules. Memory: four MiB for each of parameter, gradient and
/// fields of state.
void update_in_fp32(const Batch& batch, const std::function<void(const Batch& wide)>& update);

}  // namespace lockstep::optim
