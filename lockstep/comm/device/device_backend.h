// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "lockstep/comm/transport.h"

namespace lockstep::comm {

/// How ranks that talk already, over `host` transports, work on tensors of a device together.
class DeviceBackend {
 public:
  DeviceBackend() = default;
  virtual ~DeviceBackend() = default;
  DeviceBackend(const DeviceBackend&) = delete;
  DeviceBackend& operator=(const DeviceBackend&) = delete;

  virtual const char* name() const = 0;
  /// CommError if an operation has failed. What was computed of its result is worthless, and may
  /// have been read by the host already.
  virtual void check_alive(Op op) const = 0;
  /// As Transport::start, of collectives on tensors of the device. After the work's wait() the
  /// result may be read by what is put on the current stream then; the host need not have waited.
  virtual std::shared_ptr<Work> start(Collective collective, Milliseconds timeout) = 0;
};

}  // namespace lockstep::comm
