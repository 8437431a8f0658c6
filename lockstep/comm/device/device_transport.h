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

/// A transport that can leave its peers and connect to the same ranks again, for a program that
/// goes on after a failure of one rank.
class RenewableTransport : public Transport {
 public:
  /// Leaves the peers: operations that they have under way with this rank fail, and so do this
  /// rank's, until renew. Local.
  virtual void abandon() = 0;
  /// Connects to all ranks again, whether or not they have abandoned the connection before.
  /// Collective, over first().
  virtual void renew(Milliseconds timeout) = 0;
  /// The connection of the beginning, over which ranks can agree after abandon().
  virtual const std::shared_ptr<Transport>& first() const = 0;
};

/// `host`, and tensors of devices too: NCCL's for CUDA, else copied to the host and back.
///
/// Which of the two is found out, by all ranks together, in the first operation on a device: a
/// program that stays on the CPU touches none. Send and recv of a device's tensors go through the
/// host's memory, where two ranks may send to each other before they receive; NCCL's may not.
/// `group`: in the flight record.
std::shared_ptr<RenewableTransport> with_devices(
    std::shared_ptr<Transport> host, DeviceCommKind kind, uint64_t group);

}  // namespace lockstep::comm
