// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/base/unique_fd.h"

namespace lockstep::launcher {

/// Holds a TCP port for rank 0's rendezvous store for as long as the job lives.
///
/// The port is bound but never listened on, and carries SO_REUSEADDR: rank 0, whose socket does too
/// (libuv's, and so torch's TCPStore), can bind and listen on it, while nobody looking for a free
/// port is given it. A Linux abstract socket named after the port keeps a second job of ours off a
/// port that is held this way; it vanishes with the process.
class PortReservation {
 public:
  /// A free port of 127.0.0.1.
  static PortReservation any();
  /// `port`; ConfigError naming it if somebody listens there or another job holds it. A port whose
  /// last user has just left (TIME_WAIT) counts as free.
  static PortReservation of(int port);

  int port() const { return port_; }

 private:
  PortReservation(int port, UniqueFd socket, UniqueFd name);
  int port_;
  UniqueFd socket_;
  UniqueFd name_;
};

}  // namespace lockstep::launcher
