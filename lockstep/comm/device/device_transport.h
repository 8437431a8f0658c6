// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/comm/transport.h"

namespace lockstep::comm {

/// How tensors of a device travel. LOCKSTEP_DEVICE_COMM.
enum class DeviceCommKind {
  kAuto,  ///< NCCL between CUDA devices where each rank has one of its own, else kHost.
  kNccl,  ///< NCCL, or an error.
  kHost   ///< By way of the host's memory.
};

/// `host`, and tensors of devices too: NCCL's for CUDA, else copied to the host and back.
///
/// Which of the two is found out, by all ranks together, in the first operation on a device: a
/// program that stays on the CPU touches none. Send and recv of a device's tensors go through the
/// host's memory, where two ranks may send to each other before they receive; NCCL's may not.
/// `group`: in the flight record.
std::shared_ptr<Transport> with_devices(
    std::shared_ptr<Transport> host, DeviceCommKind kind, uint64_t group);

}  // namespace lockstep::comm
