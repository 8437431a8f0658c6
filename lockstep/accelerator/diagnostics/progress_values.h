// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <c10/core/Device.h>

#include "lockstep/accelerator/diagnostics/loss_watch.h"
#include "lockstep/base/program/progress.h"

namespace lockstep::internal {

/// Returns what a progress bar shows of a loop: the last loss, and the memory in use.
///
/// The loss is that of this process and on the CPU: a device's is not read, since each reading
/// would wait for the device. The memory is that of `device`, of a CPU the memory of the process.
/// Thread-safe. Cost: one small file read, or one call of the allocator.
ProgressValues progress_values(const LossWatch& losses, c10::Device device);

}  // namespace lockstep::internal
