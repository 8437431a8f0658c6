// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "lockstep/comm/transport/transport.h"

namespace lockstep::comm {

/// Runs collectives on device tensors.
class DeviceBackend {
 public:
  DeviceBackend() = default;
  virtual ~DeviceBackend() = default;
  DeviceBackend(const DeviceBackend&) = delete;
  DeviceBackend& operator=(const DeviceBackend&) = delete;

  virtual const char* name() const = 0;
  /// Returns whether operations start on the host's transport itself, not on a split of it.
  virtual bool is_on_host_transport() const = 0;
  /// Throws CommError if an operation has failed. Its result is invalid, and the host may have read
  /// it already.
  virtual void check_alive(Op op) const = 0;
  /// Starts collectives on tensors of the device, as Transport::start. After the work's wait(),
  /// later work on the current stream may read the result; the host does not wait.
  virtual std::shared_ptr<Work> start(Collective collective, Milliseconds timeout) = 0;
};

}  // namespace lockstep::comm
