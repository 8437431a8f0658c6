// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace lockstep {

/// Where offloaded tensors are stored. It is in this folder because ds_config.json, which is read
/// without torch, names it too.
enum class OffloadDevice {
  kNone,  ///< On the device.
  kCpu,   ///< In the host's memory.
  kNvme   ///< In files, best on a fast disk that nothing else uses.
};

}  // namespace lockstep
