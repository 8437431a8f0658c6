// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace lockstep {

/// Where what the device has no room for lies. Here, since DeepSpeed's file says it, too, which is
/// read without torch.
enum class OffloadDevice {
  kNone,  ///< On the device.
  kCpu,   ///< In the host's memory.
  kNvme   ///< In files, best on a disk of one's own that is fast.
};

}  // namespace lockstep
