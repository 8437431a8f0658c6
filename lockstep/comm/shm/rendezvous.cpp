// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/shm/rendezvous.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/rank.h"
#include "lockstep/base/text/words.h"
#include "lockstep/comm/shm/join_message.h"
#include "lockstep/comm/shm/join_responder.h"
#include "lockstep/comm/shm/local_socket.h"

namespace lockstep::comm::shm {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_of(Milliseconds timeout) {
  return static_cast<double>(timeout.count()) / 1000;
}

/// Runs rank 0's side: waits for all other ranks, and sends them the result.
class RendezvousServer {
 public:
  RendezvousServer(const RendezvousAddress& address, Milliseconds timeout)
      : address_(address),
        timeout_(timeout),
        deadline_(Clock::now() + timeout),
        listener_(listen_local(address.name)),
        connections_(static_cast<size_t>(address.size)) {
    if (!listener_.is_open()) {
      const std::string reason = std::strerror(errno);
      throw ConfigError(
          "join",
          fmt::format(
              "rank 0 cannot listen at '{}': {}; set another MASTER_PORT if another job uses this "
              "one",
              address.name,
              reason));
    }
  }

  std::shared_ptr<Segment> run() {
    std::shared_ptr<Segment> segment;
    JoinResult result = await_hellos();
    if (result.status == JoinStatus::kSuccess) {
      try {
        segment = Segment::create({.ranks = address_.size});
      } catch (const Error& error) {
        result = JoinResult::of(JoinStatus::kNoMemory, without_rank_suffix(error.what()));
      }
    }
    send_result(result, segment ? segment->fd() : -1);
    result.throw_if_failed();
    result = receive_results();
    send_result(result, -1);
    result.throw_if_failed();
    return segment;
  }

 private:
  /// Blocks until all ranks have sent a valid Hello, or one has sent an invalid one.
  JoinResult await_hellos() {
    std::vector<UniqueFd> unidentified;  // Connections without a Hello so far.
    while (true) {
      const std::vector<int> missing = missing_ranks();
      if (missing.empty()) {
        return {};
      }
      const auto left = std::chrono::duration_cast<Milliseconds>(deadline_ - Clock::now()).count();
      if (left <= 0) {
        return JoinResult::of(
            JoinStatus::kNoRendezvous,
            fmt::format(
                "{} did not join within {:.1f} s", ranks_text(missing), seconds_of(timeout_)));
      }
      wait_for_event(unidentified, left);
      for (size_t i = unidentified.size(); i-- > 0;) {
        if (readable(unidentified[i].get(), Clock::now())) {
          const JoinResult result = accept_hello(std::move(unidentified[i]));
          unidentified.erase(unidentified.begin() + static_cast<ptrdiff_t>(i));
          if (result.status != JoinStatus::kSuccess) {
            return result;
          }
        }
      }
      for (int rank = 1; rank < address_.size; ++rank) {
        // A rank sends nothing more before rank 0 does: a readable connection has ended.
        const UniqueFd& connection = connections_[static_cast<size_t>(rank)];
        if (connection.is_open() && readable(connection.get(), Clock::now())) {
          return lost_rank(rank);
        }
      }
      if (readable(listener_.get(), Clock::now())) {
        UniqueFd connection(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (connection.is_open() && peer_of(connection.get()).user == ::geteuid()) {
          unidentified.push_back(std::move(connection));
        }
      }
    }
  }

  void wait_for_event(const std::vector<UniqueFd>& unidentified, int64_t longest_ms) const {
    std::vector<pollfd> events{{.fd = listener_.get(), .events = POLLIN, .revents = 0}};
    for (const auto* connections : {&unidentified, &connections_}) {
      for (const UniqueFd& connection : *connections) {
        if (connection.is_open()) {
          events.push_back({.fd = connection.get(), .events = POLLIN, .revents = 0});
        }
      }
    }
    ::poll(events.data(), events.size(), static_cast<int>(std::min<int64_t>(longest_ms, 1000)));
  }

  std::vector<int> missing_ranks() const {
    std::vector<int> ranks;
    for (int rank = 1; rank < address_.size; ++rank) {
      if (!connections_[static_cast<size_t>(rank)].is_open()) {
        ranks.push_back(rank);
      }
    }
    return ranks;
  }

  static JoinResult lost_rank(int rank) {
    return JoinResult::of(
        JoinStatus::kNoRendezvous, fmt::format("rank {} ended before all ranks had joined", rank));
  }

  /// Adds the rank that sends a valid Hello. Ignores a connection that sends anything else.
  JoinResult accept_hello(UniqueFd connection) {
    Hello hello;
    if (!receive_message(connection.get(), &hello, sizeof(hello)) || hello.magic != kHelloMagic) {
      return {};
    }
    hello.comm.back() = '\0';
    const Peer peer = peer_of(connection.get());
    const Hello mine = Hello::of(address_, false);
    if (hello.over_gloo != 0 && hello.master_addr_crc != mine.master_addr_crc) {
      return {};
    }
    JoinResult result;
    if (const std::string fault = join_mismatch(address_.name, mine, hello); !fault.empty()) {
      result = JoinResult::of(JoinStatus::kNoRendezvous, fault);
    } else if (
        hello.rank < 1 || hello.rank >= address_.size ||
        connections_[static_cast<size_t>(hello.rank)].is_open()) {
      result = JoinResult::of(
          JoinStatus::kNoRendezvous,
          fmt::format(
              "two processes are rank {} at '{}'; set another MASTER_PORT if another job uses this "
              "one",
              hello.rank,
              address_.name));
    } else if (hello.pid != peer.pid) {
      result = JoinResult::of(
          JoinStatus::kNoMemory,
          fmt::format(
              "rank {} is process {} in its own namespace and {} in rank 0's; run all ranks of a "
              "host in one process namespace",
              hello.rank,
              hello.pid,
              peer.pid));
    }
    if (result.status != JoinStatus::kSuccess) {
      send_message(connection.get(), &result, sizeof(result));
    } else {
      connections_[static_cast<size_t>(hello.rank)] = std::move(connection);
    }
    return result;
  }

  void send_result(const JoinResult& result, int file) const {
    for (const UniqueFd& connection : connections_) {
      if (connection.is_open()) {
        // A rank that has died meanwhile is noticed when it does not answer.
        send_message(connection.get(), &result, sizeof(result), file);
      }
    }
  }

  /// Returns the first failure of a rank to map the memory; success if there is none.
  JoinResult receive_results() const {
    for (int rank = 1; rank < address_.size; ++rank) {
      const UniqueFd& connection = connections_[static_cast<size_t>(rank)];
      JoinResult theirs;
      if (!readable(connection.get(), deadline_) ||
          !receive_message(connection.get(), &theirs, sizeof(theirs))) {
        return lost_rank(rank);
      }
      theirs.text.back() = '\0';
      if (theirs.status != JoinStatus::kSuccess) {
        return JoinResult::of(theirs.status, fmt::format("rank {}: {}", rank, theirs.text.data()));
      }
    }
    return {};
  }

  const RendezvousAddress& address_;
  Milliseconds timeout_;
  Deadline deadline_;
  UniqueFd listener_;
  std::vector<UniqueFd> connections_;
};

/// Runs the side of every other rank.
class RendezvousClient {
 public:
  RendezvousClient(const RendezvousAddress& address, Milliseconds timeout)
      : address_(address), timeout_(timeout), deadline_(Clock::now() + timeout) {}

  std::shared_ptr<Segment> run() {
    find_rank_0();
    const Hello hello = Hello::of(address_, false);
    send_message(rank_0_.get(), &hello, sizeof(hello));
    UniqueFd file;
    receive_result(&file).throw_if_failed();
    std::shared_ptr<Segment> segment;
    JoinResult mine;
    try {
      segment = Segment::attach(std::move(file));
    } catch (const Error& error) {
      mine = JoinResult::of(JoinStatus::kNoMemory, without_rank_suffix(error.what()));
    }
    send_message(rank_0_.get(), &mine, sizeof(mine));
    receive_result(nullptr).throw_if_failed();
    return segment;
  }

 private:
  void find_rank_0() {
    auto pause = std::chrono::microseconds(200);
    while (!(rank_0_ = connect_local(address_.name)).is_open()) {
      const std::string fault = ask_gloo_rank_0(address_);
      if (!fault.empty()) {
        throw CommError("join", fault, 0);
      }
      if (Clock::now() > deadline_) {
        throw CommError(
            "join",
            fmt::format(
                "rank 0 did not answer at '{}' on this host within {:.1f} s; check that rank 0 "
                "runs, and that MASTER_PORT is right",
                address_.name,
                seconds_of(timeout_)),
            0,
            seconds_of(timeout_));
      }
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, std::chrono::microseconds(5000));
    }
    if (peer_of(rank_0_.get()).user != ::geteuid()) {
      throw CommError(
          "join",
          fmt::format(
              "rank 0 at '{}' belongs to another user; set another MASTER_PORT", address_.name));
    }
  }

  JoinResult receive_result(UniqueFd* file) const {
    // Rank 0 reports the missing ranks at the deadline, so it gets time to do so.
    if (!readable(rank_0_.get(), deadline_ + std::chrono::seconds(2))) {
      throw CommError(
          "join",
          fmt::format("not all ranks joined within {:.1f} s", seconds_of(timeout_)),
          -1,
          seconds_of(timeout_));
    }
    JoinResult result;
    if (!receive_message(rank_0_.get(), &result, sizeof(result), file)) {
      throw CommError("join", "rank 0 ended before all ranks had joined", 0);
    }
    result.text.back() = '\0';
    return result;
  }

  const RendezvousAddress& address_;
  Milliseconds timeout_;
  Deadline deadline_;
  UniqueFd rank_0_;
};

}  // namespace

std::shared_ptr<Segment> rendezvous(const RendezvousAddress& address, Milliseconds timeout) {
  if (address.rank == 0) {
    return RendezvousServer(address, timeout).run();
  }
  return RendezvousClient(address, timeout).run();
}

}  // namespace lockstep::comm::shm
