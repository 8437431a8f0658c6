// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "lockstep/base/env.h"
#include "lockstep/base/world.h"
#include "lockstep/comm/device/device_transport.h"
#include "lockstep/comm/group.h"

namespace lockstep {

enum class TransportKind {
  kAuto,  ///< Shared memory within a host where it can be had, Gloo else.
  kShm,
  kGloo
};

struct ConnectOptions {
  /// How long any operation may take. LOCKSTEP_TIMEOUT_MS.
  comm::Milliseconds timeout{std::chrono::minutes(10)};
  /// How long to wait for all ranks to appear. LOCKSTEP_JOIN_TIMEOUT_MS.
  comm::Milliseconds join_timeout{std::chrono::minutes(2)};
  /// How bytes travel. LOCKSTEP_COMM = auto|shm|gloo.
  TransportKind transport = TransportKind::kAuto;
  /// How tensors on devices travel. LOCKSTEP_DEVICE_COMM = auto|nccl|host.
  comm::DeviceCommKind device_comm = comm::DeviceCommKind::kAuto;

  /// The defaults, overridden by the variables above; ConfigError if they make no sense.
  static ConnectOptions from_environment(const Environment& environment);
};

/// Meets the other ranks of `world` and returns the group of all of them; a world of one connects
/// to nothing. Collective.
///
/// Rank 0 serves the store at master_addr:master_port (a client like all others under torchrun,
/// whose agent serves it). When all ranks share a host, store and data connections bind to loopback
/// only, and, unless Gloo is asked for, the ranks talk over shared memory.
///
/// ConfigError: the port is taken; shared memory is asked for and the ranks are on several hosts;
/// master_addr is no address of rank 0's machine. CommError, within join_timeout: the store cannot
/// be reached (names the address), ranks are missing (names them), or two processes claim one rank.
/// CommError, within seconds: worlds of different size meet, or the ranks' `transport` differs.
Group connect(const WorldSpec& world, ConnectOptions options = {});

/// A group, and the transport under it; null in a world of one.
struct Connection {
  Group group;
  std::shared_ptr<comm::RenewableTransport> transport;
};

/// As connect, for a program that can go on after a failure of one rank.
Connection connect_renewable(const WorldSpec& world, ConnectOptions options = {});

}  // namespace lockstep
