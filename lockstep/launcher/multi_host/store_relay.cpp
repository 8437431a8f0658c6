// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/multi_host/store_relay.h"

#include <chrono>
#include <sys/socket.h>
#include <utility>

#include "lockstep/base/host/address.h"

namespace lockstep::launcher {
namespace {

constexpr auto kStoreRetryInterval = std::chrono::milliseconds(10);

}  // namespace

StoreRelay::~StoreRelay() {
  while (!connections_.empty()) {
    remove(connections_.begin()->first);
  }
}

void StoreRelay::add(UniqueFd socket, std::string read) {
  const uint64_t number = ++last_number_;
  Connection& connection = connections_[number];
  connection.from_listener = std::move(socket);
  connection.read = std::move(read);
  connection.deadline = in_seconds(timeout_seconds_);
  connect(number);
}

/// Retries until the deadline, since rank 0 may start its store later.
void StoreRelay::connect(uint64_t number) {
  Connection& connection = connections_.at(number);
  const Address address = loopback(port_);
  connection.to_store = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  // At loopback a connection is accepted or refused at once.
  const bool connected = port_ != 0 && connection.to_store.is_open() &&
                         ::connect(connection.to_store.get(), address.get(), address.length) == 0;
  if (connected) {
    connection.relay = std::make_unique<Relay>(
        reactor_,
        std::move(connection.from_listener),
        std::move(connection.to_store),
        std::move(connection.read),
        [this, number] { remove(number); });
  } else if (Clock::now() >= connection.deadline) {
    remove(number);
  } else {
    connection.timer =
        reactor_.at(Clock::now() + kStoreRetryInterval, [this, number] { connect(number); });
  }
}

void StoreRelay::remove(uint64_t number) {
  const auto found = connections_.find(number);
  if (found != connections_.end()) {
    reactor_.cancel(found->second.timer);
    connections_.erase(found);
  }
}

}  // namespace lockstep::launcher
