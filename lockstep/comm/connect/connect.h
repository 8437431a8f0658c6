// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/base/env.h"
#include "lockstep/base/host/world.h"
#include "lockstep/comm/device/device_transport.h"
#include "lockstep/comm/group.h"

namespace lockstep {

/// Selects the transport of CPU tensors.
enum class TransportKind {
  kAuto,  ///< Shared memory within a host if available, else Gloo.
  kShm,
  kGloo
};

/// Sets the timeouts and transports of `connect`.
struct ConnectOptions {
  /// Timeout of an operation. LOCKSTEP_TIMEOUT_MS.
  comm::Milliseconds timeout{std::chrono::minutes(10)};
  /// Timeout for all ranks to join. LOCKSTEP_JOIN_TIMEOUT_MS.
  comm::Milliseconds join_timeout{std::chrono::minutes(2)};
  /// The transport of CPU tensors. LOCKSTEP_COMM = auto|shm|gloo.
  TransportKind transport = TransportKind::kAuto;
  /// The transport of device tensors. LOCKSTEP_DEVICE_COMM = auto|nccl|host.
  comm::DeviceCommKind device_comm = comm::DeviceCommKind::kAuto;
  /// The group's id in the flight record; 0: the group of all ranks of the job. With another id,
  /// this process keeps the rank that it has in the record.
  uint64_t flight_group = 0;

  /// Returns the defaults, overridden by the variables above. Throws ConfigError for invalid
  /// values.
  static ConnectOptions from_environment(const Environment& environment);
};

/// Connects the ranks of `world` and returns the group of all ranks. A world of one connects to
/// nothing. Collective.
///
/// Rank 0 serves the store at master_addr:master_port. Under torchrun, whose agent serves the
/// store, rank 0 is a client, too. If all ranks share a host, store and data connections bind to
/// loopback only, and the ranks use shared memory unless Gloo is requested.
///
/// Throws ConfigError if the port is taken, if shared memory is requested for ranks on several
/// hosts, or if master_addr is not an address of rank 0's machine. Throws CommError within
/// join_timeout if the store cannot be reached (names the address), ranks are missing (names them),
/// or two processes claim one rank. Throws CommError within seconds if the ranks have different
/// world sizes or a different `transport`.
Group connect(const WorldSpec& world, ConnectOptions options = {});

/// Holds a group and its transport, which is null in a world of one.
struct Connection {
  Group group;
  std::shared_ptr<comm::RenewableTransport> transport;
};

/// Connects as `connect`, for a program that can continue after a failure of one rank.
Connection connect_renewable(const WorldSpec& world, ConnectOptions options = {});

}  // namespace lockstep
