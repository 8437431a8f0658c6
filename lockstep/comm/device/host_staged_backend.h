// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "lockstep/comm/transport/device_backend.h"

namespace lockstep::comm {

/// Runs operations on device tensors through the host's memory: copies them there, calls `host`,
/// and copies the result back when it is awaited. For devices without a communication library, and
/// ranks that share one device. Bit-exact with tensors on the host.
///
/// Cost: two copies between device and host, and the host waits for the device at the start. Thread
/// safety: that of the host transport.
std::unique_ptr<DeviceBackend> staged_link(std::shared_ptr<Transport> host);

}  // namespace lockstep::comm
