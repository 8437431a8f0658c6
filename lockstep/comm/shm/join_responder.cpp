// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/shm/join_responder.h"

#include <chrono>
#include <sys/socket.h>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/memory/crc32c.h"
#include "lockstep/comm/shm/local_socket.h"

namespace lockstep::comm::shm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kAnswerTimeout = std::chrono::seconds(2);
constexpr auto kHelloTimeout = std::chrono::milliseconds(100);

/// Returns the address at which a rank 0 that joins over Gloo answers. It differs from the
/// rendezvous address, which ranks of another job can therefore use meanwhile.
std::string gloo_name(const RendezvousAddress& address) {
  return fmt::format("{}/gloo/{:08x}", address.name, crc32c(address.master_addr));
}

/// Returns the reason why the sender of `hello` cannot join the rank 0 at `name`. It is empty if
/// the sender can join, or if no process answers.
std::string ask(const std::string& name, const Hello& hello) {
  const UniqueFd rank_0 = connect_local(name);
  if (!rank_0.is_open() || peer_of(rank_0.get()).user != ::geteuid()) {
    return {};
  }
  JoinResult result;
  if (!send_message(rank_0.get(), &hello, sizeof(hello)) ||
      !readable(rank_0.get(), Clock::now() + kAnswerTimeout) ||
      !receive_message(rank_0.get(), &result, sizeof(result))) {
    return {};
  }
  result.text.back() = '\0';
  return result.text.data();
}

}  // namespace

JoinResponder::JoinResponder(const RendezvousAddress& address)
    : address_(address), listener_(listen_local(gloo_name(address))) {}

std::string JoinResponder::answer() {
  while (listener_.is_open() && readable(listener_.get(), Clock::now())) {
    const UniqueFd connection(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    Hello hello;
    if (!connection.is_open() || peer_of(connection.get()).user != ::geteuid() ||
        !readable(connection.get(), Clock::now() + kHelloTimeout) ||
        !receive_message(connection.get(), &hello, sizeof(hello)) || hello.magic != kHelloMagic) {
      continue;
    }
    hello.comm.back() = '\0';
    const std::string fault = join_mismatch(address_.name, Hello::of(address_, true), hello);
    const JoinResult result =
        fault.empty() ? JoinResult{} : JoinResult::of(JoinStatus::kNoRendezvous, fault);
    send_message(connection.get(), &result, sizeof(result));
    if (!fault.empty()) {
      return fault;
    }
  }
  return {};
}

std::string ask_shm_rank_0(const RendezvousAddress& address) {
  return ask(address.name, Hello::of(address, true));
}

std::string ask_gloo_rank_0(const RendezvousAddress& address) {
  return ask(gloo_name(address), Hello::of(address, false));
}

}  // namespace lockstep::comm::shm
