// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/host/address.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/launcher/process/reactor.h"

namespace lockstep::launcher {

/// The start of a connection's first line.
inline constexpr std::string_view kGreeting = "LOCKSTEP1 ";

/// Listens at the one port of a job that other hosts can reach, and accepts connections that have
/// the job's token.
///
/// A connection sends one line, `LOCKSTEP1 TOKEN PURPOSE`, and gets `OK`, or `NO` and a reason,
/// before anything else is read or written. A connection with another line or token, or one that is
/// too slow (5 s), is closed. At most 64 connections may be in this phase; further ones replace the
/// oldest: neither garbage nor hundreds of idle connections block a client that retries. The token
/// is compared in constant time. Neither token nor data is encrypted: this protects against
/// strangers and other jobs, not against readers of the network.
class RendezvousListener {
 public:
  /// `socket` is non-blocking; `read` is the data after the line.
  using OnConnection =
      std::function<void(const std::string& purpose, UniqueFd socket, std::string read)>;
  using OnRefused = std::function<void(const std::string& text)>;

  static constexpr size_t kMaxPending = 64;

  /// Listens at `address`; port 0 is any free port. Throws ConfigError that names the port if that
  /// fails. `on_refused` is called at most once in ten seconds.
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
  void check_token(uint64_t number, const std::string& line);
  void reject(uint64_t number, const std::string& why, const char* answer = "");

  Reactor& reactor_;
  UniqueFd listener_;
  int port_ = 0;
  std::string token_;
  OnConnection on_connection_;
  OnRefused on_refused_;
  std::map<uint64_t, Connection> connections_;  // In order of arrival.
  uint64_t last_connection_ = 0;
  size_t refused_ = 0;  // Since the last report.
  Clock::time_point last_report_{};
};

/// Returns the address at which node 0 listens: the one that the other hosts use. If a host's name
/// resolves to its loopback address (127.0.1.1), returns the wildcard address, since other hosts
/// cannot reach loopback. Returns nothing, and sets `why`, if `master_addr` is not an address of
/// this machine.
std::optional<Address> listener_address(const std::string& master_addr, int port, std::string& why);

/// Returns whether `text` is a valid token: 16 to 128 letters, digits, `-` and `_`.
bool is_token(const std::string& text);
/// Returns 128 random bits as hexadecimal digits.
std::string random_token();

}  // namespace lockstep::launcher
