// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "lockstep/base/env.h"
#include "lockstep/base/host/world.h"
#include "lockstep/comm/device/device_transport.h"
#include "lockstep/comm/group.h"

namespace lockstep {

/// The transport of CPU tensors.
enum class TransportKind {
  kAuto,  ///< Shared memory within a host if available, else Gloo.
  kShm,
  kGloo
};

/// Timeouts and transports of `connect`.
struct ConnectOptions {
  /// Timeout of an operation. LOCKSTEP_TIMEOUT_MS.
  comm::Milliseconds timeout{std::chrono::minutes(10)};
  /// How long to wait for all ranks to join. LOCKSTEP_JOIN_TIMEOUT_MS.
  comm::Milliseconds join_timeout{std::chrono::minutes(2)};
  /// The transport of CPU tensors. LOCKSTEP_COMM = auto|shm|gloo.
  TransportKind transport = TransportKind::kAuto;
  /// The transport of device tensors. LOCKSTEP_DEVICE_COMM = auto|nccl|host.
  comm::DeviceCommKind device_comm = comm::DeviceCommKind::kAuto;

  /// Returns the defaults, overridden by the variables above. Throws ConfigError for invalid
  /// values.
  static ConnectOptions from_environment(const Environment& environment);
};

/// Connects the ranks of `world` and returns the group of all of them; a world of one connects to
/// nothing. Collective.
///
/// Rank 0 serves the store at master_addr:master_port (under torchrun, whose agent serves it, rank
/// 0 is a client, too). If all ranks share a host, store and data connections bind to loopback
/// only, and the ranks use shared memory unless Gloo is requested.
///
/// ConfigError: the port is taken; shared memory is requested and the ranks are on several hosts;
/// master_addr is no address of rank 0's machine. CommError, within join_timeout: the store cannot
/// be reached (names the address), ranks are missing (names them), or two processes claim one rank.
/// CommError, within seconds: worlds of different size connect, or the ranks' `transport` differs.
Group connect(const WorldSpec& world, ConnectOptions options = {});

/// Holds a group and its transport, which is null in a world of one.
struct Connection {
  Group group;
  std::shared_ptr<comm::RenewableTransport> transport;
};

/// Works as connect, for a program that can continue after a failure of one rank.
Connection connect_renewable(const WorldSpec& world, ConnectOptions options = {});

}  // namespace lockstep
