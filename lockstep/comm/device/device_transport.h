// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/comm/transport/transport.h"

namespace lockstep::comm {

/// Selects the transport of device tensors. LOCKSTEP_DEVICE_COMM.
enum class DeviceCommKind {
  kAuto,  ///< NCCL if each rank has its own CUDA device, else kHost.
  kNccl,  ///< NCCL, or an error.
  kHost   ///< Copies through the host's memory.
};

/// Disconnects from its ranks and connects to them again, for a program that continues after a
/// failure of one rank.
class RenewableTransport : public Transport {
 public:
  /// Disconnects: running operations with this rank fail, here and on its peers, until renew.
  /// Local.
  virtual void abandon() = 0;
  /// Connects to all ranks again, whether or not they have disconnected. Collective, over first().
  virtual void renew(Milliseconds timeout) = 0;
  /// Returns the first connection, over which ranks can communicate after abandon().
  virtual const std::shared_ptr<Transport>& first() const = 0;
};

/// Adds device tensors to `host`: CUDA tensors use NCCL, others are copied to the host and back.
///
/// All ranks choose together in the first operation on a device; a program that stays on the CPU
/// initializes no device. Send and recv of device tensors go through the host's memory, where two
/// ranks may send to each other before they receive, which NCCL forbids. `group`: its id in the
/// flight record.
std::shared_ptr<RenewableTransport> with_devices(
    std::shared_ptr<Transport> host, DeviceCommKind kind, uint64_t group);

}  // namespace lockstep::comm
