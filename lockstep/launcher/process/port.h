// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/base/unique_fd.h"

namespace lockstep::launcher {

/// Reserves a TCP port for rank 0's rendezvous store while the job runs.
///
/// The port is bound without listening, with SO_REUSEADDR. Rank 0, whose socket also has it
/// (libuv's, and so torch's TCPStore), can bind and listen on it, but no search for a free port
/// returns it. An abstract socket named after the port keeps a second Lockstep job from using it;
/// the socket ends with the process.
class PortReservation {
 public:
  /// Reserves a free port of 127.0.0.1.
  static PortReservation any();
  /// Reserves `port`. Throws ConfigError that names it if a process listens there or another job
  /// holds it. A port in TIME_WAIT counts as free.
  static PortReservation of(int port);

  int port() const { return port_; }

 private:
  PortReservation(int port, UniqueFd socket, UniqueFd name);
  int port_;
  UniqueFd socket_;
  UniqueFd name_;
};

}  // namespace lockstep::launcher
