// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "lockstep/base/address.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/launcher/process/reactor.h"

namespace lockstep::launcher {

/// What a guest's line begins with.
inline constexpr std::string_view kGreeting = "LOCKSTEP1 ";

/// The one port of a job that other hosts can reach: lets in who has the job's token.
///
/// A guest says one line, `LOCKSTEP1 TOKEN PURPOSE`, and is answered `OK`, or `NO` and why, before
/// anything else is read or written. Who says anything else, says it too slowly (5 s) or has
/// another token is turned away. At most 64 guests may be at that point; of more, the one that came
/// first has to go: neither garbage nor hundreds of idle connections keep anybody out, who tries
/// again. The token is compared in constant time. Neither it nor what follows is encrypted: this
/// keeps out strangers and other jobs, not who can read the network.
///
/// Not thread-safe.
class RendezvousListener {
 public:
  /// `socket` does not block; `read` is what came after the line.
  using OnConnection =
      std::function<void(const std::string& purpose, UniqueFd socket, std::string read)>;
  using OnRefused = std::function<void(const std::string& text)>;

  static constexpr size_t kMostGuests = 64;

  /// `address`: where to listen; port 0 for any. ConfigError that names the port if that cannot be
  /// done. `on_refused` is told, once in ten seconds at most.
  RendezvousListener(
      Reactor& reactor,
      const Address& address,
      std::string token,
      OnConnection on_connection,
      OnRefused on_refused);
  ~RendezvousListener();
  RendezvousListener(const RendezvousListener&) = delete;
  RendezvousListener& operator=(const RendezvousListener&) = delete;

  int port() const { return port_; }

 private:
  struct Connection {
    UniqueFd fd;
    std::string read;
    Reactor::TimerId timer = 0;
  };

  void accept();
  void on_ready(uint64_t number);
  void judge(uint64_t number, const std::string& line);
  void reject(uint64_t number, const std::string& why, const char* answer = "");

  Reactor& reactor_;
  UniqueFd listener_;
  int port_ = 0;
  std::string token_;
  OnConnection on_connection_;
  OnRefused on_refused_;
  std::map<uint64_t, Connection> connections_;  // In the order they came.
  uint64_t last_connection_ = 0;
  size_t refused_ = 0;  // Since it was last told of.
  Clock::time_point told_{};
};

/// Whether a text can be a token: 16 to 128 letters, digits, `-` and `_`.
bool is_token(const std::string& text);
/// 128 random bits.
std::string random_token();

}  // namespace lockstep::launcher
