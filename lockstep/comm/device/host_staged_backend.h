// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "lockstep/comm/device/device_backend.h"

namespace lockstep::comm {

/// Tensors of any device, by way of the host's memory: copied there, worked on by `host`, copied
/// back when the result is waited for. For devices that have no library of their own for it, and
/// ranks that share one device. The same bits as of tensors on the host.
///
/// Cost: two copies between device and host, and the host waits for the device at the start.
/// Thread safety: as the host transport's.
std::unique_ptr<DeviceBackend> staged_link(std::shared_ptr<Transport> host);

}  // namespace lockstep::comm
