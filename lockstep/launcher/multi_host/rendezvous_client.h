// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/base/host/address.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/launcher/process/reactor.h"

namespace lockstep::launcher {

/// Connects to a RendezvousListener, with retries until it is accepted or the deadline is reached:
/// the listener may start later.
class RendezvousClient {
 public:
  /// The result of the attempt to connect.
  struct Answer {
    UniqueFd socket;     ///< Open if accepted; non-blocking.
    std::string read;    ///< Data received after the OK.
    std::string why;     ///< The reason if refused.
    bool final = false;  ///< The listener has refused: a retry is useless.
  };
  using OnAnswer = std::function<void(Answer answer)>;

  /// `on_answer` is called once, from the reactor, and may destroy this.
  RendezvousClient(
      Reactor& reactor,
      std::vector<Address> addresses,
      std::string token,
      std::string purpose,
      Clock::time_point deadline,
      OnAnswer on_answer);
  ~RendezvousClient();
  RendezvousClient(const RendezvousClient&) = delete;
  RendezvousClient& operator=(const RendezvousClient&) = delete;

 private:
  void try_next();
  void on_ready();
  void failed(const std::string& why);
  void drop();
  void finish(Answer answer);

  Reactor& reactor_;
  std::vector<Address> addresses_;
  std::string hello_;
  Clock::time_point deadline_;
  OnAnswer on_answer_;
  size_t next_ = 0;
  UniqueFd fd_;
  bool hello_sent_ = false;
  std::string read_;
  std::string last_failure_ = "it does not answer";
  Reactor::TimerId timer_ = 0;
};

}  // namespace lockstep::launcher
