// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "lockstep/comm/transport/transport.h"

namespace lockstep::comm {

/// Collectives on device tensors, between ranks that are connected by `host` transports.
class DeviceBackend {
 public:
  DeviceBackend() = default;
  virtual ~DeviceBackend() = default;
  DeviceBackend(const DeviceBackend&) = delete;
  DeviceBackend& operator=(const DeviceBackend&) = delete;

  virtual const char* name() const = 0;
  /// Throws CommError if an operation has failed. Its result is invalid, and the host may have read
  /// it already.
  virtual void check_alive(Op op) const = 0;
  /// Starts collectives on tensors of the device, as Transport::start. After the work's wait(),
  /// later work on the current stream may read the result; the host does not wait.
  virtual std::shared_ptr<Work> start(Collective collective, Milliseconds timeout) = 0;
};

}  // namespace lockstep::comm
