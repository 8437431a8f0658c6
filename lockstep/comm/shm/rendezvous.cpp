// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/shm/rendezvous.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/base/memory/crc32c.h"
#include "lockstep/base/rank.h"
#include "lockstep/comm/shm/local_socket.h"

namespace lockstep::comm::shm {
namespace {

using Clock = std::chrono::steady_clock;

// What is said, in this order: each rank its Hello; rank 0 a Verdict, the memory with it; each rank
// a Verdict on whether it could map it; rank 0 the last one, which all obey.

constexpr uint32_t kHelloMagic = 0x336d6b6cU;  // "lkm3"
constexpr auto kAnswerPatience = std::chrono::seconds(2);
constexpr auto kHelloPatience = std::chrono::milliseconds(100);

/// Where a rank 0 that joins over Gloo answers: at a name of its own, so that ranks of another job
/// can meet at `place` meanwhile.
std::string gloo_name(const RendezvousAddress& place) {
  return fmt::format("{}/gloo/{:08x}", place.name, crc32c(place.master_addr));
}

struct Hello {
  uint32_t magic = kHelloMagic;
  int32_t rank = 0;
  int32_t size = 0;
  /// As which this process knows itself. If the kernel calls it otherwise, to the others, they
  /// could not watch over it.
  int32_t pid = 0;
  int32_t local_size = 0;
  int32_t over_gloo = 0;  ///< Whether it joins over Gloo, and only asks.
  uint32_t master_addr_crc = 0;
  std::array<char, 8> comm{};

  static Hello of(const RendezvousAddress& place, bool over_gloo) {
    Hello hello{
        .rank = place.rank,
        .size = place.size,
        .pid = ::getpid(),
        .local_size = place.local_size,
        .over_gloo = over_gloo ? 1 : 0,
        .master_addr_crc = crc32c(place.master_addr)};
    place.comm.copy(hello.comm.data(), hello.comm.size() - 1);
    return hello;
  }
};

enum class Outcome : int32_t { kGood, kNoRendezvous, kNoMemory };

struct Verdict {
  Outcome outcome = Outcome::kGood;
  std::array<char, 1000> text{};

  static Verdict of(Outcome outcome, const std::string& text) {
    Verdict verdict;
    verdict.outcome = outcome;
    text.copy(verdict.text.data(), verdict.text.size() - 1);
    return verdict;
  }
  void obey() const {
    if (outcome == Outcome::kNoRendezvous) {
      throw CommError("join", text.data());
    }
    if (outcome == Outcome::kNoMemory) {
      throw Error("join", text.data());
    }
  }
};

std::string way_of(const Hello& hello) {
  return fmt::format(
      "{} (WORLD_SIZE {}, LOCAL_WORLD_SIZE {}, LOCKSTEP_COMM {})",
      hello.over_gloo != 0 ? "Gloo" : "shared memory",
      hello.size,
      hello.local_size,
      hello.comm.data());
}

/// What keeps a rank from joining rank 0; empty if nothing does. `name`: of the meeting place.
std::string disagreement(const std::string& name, const Hello& rank_0, const Hello& other) {
  if (other.size != rank_0.size) {
    return fmt::format(
        "worlds of different size meet at '{}'; rank {}'s is {}, rank 0's is {}; set the same "
        "WORLD_SIZE on all ranks; or are two jobs using this MASTER_PORT?",
        name,
        other.rank,
        other.size,
        rank_0.size);
  }
  if (other.comm != rank_0.comm) {
    return fmt::format(
        "the ranks disagree on LOCKSTEP_COMM; got {} on rank {}, {} on rank 0; set the same on all "
        "ranks",
        other.comm.data(),
        other.rank,
        rank_0.comm.data());
  }
  if (other.over_gloo != rank_0.over_gloo) {
    return fmt::format(
        "the ranks disagree on how to join; rank {} joins over {}, rank 0 over {}; set these "
        "variables alike on all ranks of a host",
        other.rank,
        way_of(other),
        way_of(rank_0));
  }
  return {};
}

double seconds_of(Milliseconds timeout) {
  return static_cast<double>(timeout.count()) / 1000;
}

/// What keeps whoever says `hello` from joining the rank 0 that listens at `name`; empty if nothing
/// does, or nobody answers.
std::string ask(const std::string& name, const Hello& hello) {
  const UniqueFd rank_0 = connect_local(name);
  if (!rank_0.is_open() || peer_of(rank_0.get()).user != ::geteuid()) {
    return {};
  }
  Verdict verdict;
  if (!send_message(rank_0.get(), &hello, sizeof(hello)) ||
      !readable(rank_0.get(), Clock::now() + kAnswerPatience) ||
      !receive_message(rank_0.get(), &verdict, sizeof(verdict))) {
    return {};
  }
  verdict.text.back() = '\0';
  return verdict.text.data();
}

/// Rank 0, who waits for all others and tells them what comes of it.
class Host {
 public:
  Host(const RendezvousAddress& place, Milliseconds timeout)
      : place_(place),
        timeout_(timeout),
        deadline_(Clock::now() + timeout),
        listener_(listen_local(place.name)),
        guests_(static_cast<size_t>(place.size)) {
    if (!listener_.is_open()) {
      const std::string reason = std::strerror(errno);
      throw ConfigError(
          "join",
          fmt::format(
              "rank 0 cannot meet the others at '{}': {}; another job may use this MASTER_PORT; "
              "set it to another one",
              place.name,
              reason));
    }
  }

  std::shared_ptr<Segment> run() {
    std::shared_ptr<Segment> segment;
    Verdict verdict = gather();
    if (verdict.outcome == Outcome::kGood) {
      try {
        segment = Segment::create({.ranks = place_.size});
      } catch (const Error& error) {
        verdict = Verdict::of(Outcome::kNoMemory, without_rank_suffix(error.what()));
      }
    }
    tell(verdict, segment ? segment->fd() : -1);
    verdict.obey();
    verdict = hear();
    tell(verdict, -1);
    verdict.obey();
    return segment;
  }

 private:
  /// Returns when all have said who they are, or somebody cannot be right.
  Verdict gather() {
    std::vector<UniqueFd> strangers;  // Who has not said anything yet.
    while (true) {
      const std::vector<int> missing = absent();
      if (missing.empty()) {
        return {};
      }
      const auto left = std::chrono::duration_cast<Milliseconds>(deadline_ - Clock::now()).count();
      if (left <= 0) {
        return Verdict::of(
            Outcome::kNoRendezvous,
            fmt::format(
                "rank{} {} did not join within {:.1f} s",
                missing.size() == 1 ? "" : "s",
                fmt::join(missing, ", "),
                seconds_of(timeout_)));
      }
      await_anything(strangers, left);
      for (size_t i = strangers.size(); i-- > 0;) {
        if (readable(strangers[i].get(), Clock::now())) {
          const Verdict verdict = welcome(std::move(strangers[i]));
          strangers.erase(strangers.begin() + static_cast<ptrdiff_t>(i));
          if (verdict.outcome != Outcome::kGood) {
            return verdict;
          }
        }
      }
      for (int rank = 1; rank < place_.size; ++rank) {
        // A guest has nothing to say before it has heard: what can be read is its end.
        const UniqueFd& guest = guests_[static_cast<size_t>(rank)];
        if (guest.is_open() && readable(guest.get(), Clock::now())) {
          return ended(rank);
        }
      }
      if (readable(listener_.get(), Clock::now())) {
        UniqueFd stranger(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (stranger.is_open() && peer_of(stranger.get()).user == ::geteuid()) {
          strangers.push_back(std::move(stranger));
        }
      }
    }
  }

  void await_anything(const std::vector<UniqueFd>& strangers, int64_t longest_ms) const {
    std::vector<pollfd> events{{.fd = listener_.get(), .events = POLLIN, .revents = 0}};
    for (const auto* connections : {&strangers, &guests_}) {
      for (const UniqueFd& connection : *connections) {
        if (connection.is_open()) {
          events.push_back({.fd = connection.get(), .events = POLLIN, .revents = 0});
        }
      }
    }
    ::poll(events.data(), events.size(), static_cast<int>(std::min<int64_t>(longest_ms, 1000)));
  }

  std::vector<int> absent() const {
    std::vector<int> ranks;
    for (int rank = 1; rank < place_.size; ++rank) {
      if (!guests_[static_cast<size_t>(rank)].is_open()) {
        ranks.push_back(rank);
      }
    }
    return ranks;
  }

  static Verdict ended(int rank) {
    return Verdict::of(
        Outcome::kNoRendezvous, fmt::format("rank {} ended before all had joined", rank));
  }

  /// Lets in whoever says who it is, as far as that can be; who says anything else is not heard.
  Verdict welcome(UniqueFd stranger) {
    Hello hello;
    if (!receive_message(stranger.get(), &hello, sizeof(hello)) || hello.magic != kHelloMagic) {
      return {};
    }
    hello.comm.back() = '\0';
    const Peer peer = peer_of(stranger.get());
    const Hello mine = Hello::of(place_, false);
    if (hello.over_gloo != 0 && hello.master_addr_crc != mine.master_addr_crc) {
      return {};
    }
    Verdict verdict;
    if (const std::string fault = disagreement(place_.name, mine, hello); !fault.empty()) {
      verdict = Verdict::of(Outcome::kNoRendezvous, fault);
    } else if (
        hello.rank < 1 || hello.rank >= place_.size ||
        guests_[static_cast<size_t>(hello.rank)].is_open()) {
      verdict = Verdict::of(
          Outcome::kNoRendezvous,
          fmt::format(
              "two processes say they are rank {} at '{}'; are two jobs using this MASTER_PORT?",
              hello.rank,
              place_.name));
    } else if (hello.pid != peer.pid) {
      verdict = Verdict::of(
          Outcome::kNoMemory,
          fmt::format(
              "rank {} calls itself process {}, and is {} to rank 0; the ranks of a host must run "
              "in one process namespace",
              hello.rank,
              hello.pid,
              peer.pid));
    }
    if (verdict.outcome != Outcome::kGood) {
      send_message(stranger.get(), &verdict, sizeof(verdict));
    } else {
      guests_[static_cast<size_t>(hello.rank)] = std::move(stranger);
    }
    return verdict;
  }

  void tell(const Verdict& verdict, int file) const {
    for (const UniqueFd& guest : guests_) {
      if (guest.is_open()) {
        // Who has died meanwhile is noticed when it does not answer.
        send_message(guest.get(), &verdict, sizeof(verdict), file);
      }
    }
  }

  /// What the others made of the memory; the first that could not map it decides.
  Verdict hear() const {
    for (int rank = 1; rank < place_.size; ++rank) {
      const UniqueFd& guest = guests_[static_cast<size_t>(rank)];
      Verdict theirs;
      if (!readable(guest.get(), deadline_) ||
          !receive_message(guest.get(), &theirs, sizeof(theirs))) {
        return ended(rank);
      }
      theirs.text.back() = '\0';
      if (theirs.outcome != Outcome::kGood) {
        return Verdict::of(theirs.outcome, fmt::format("rank {}: {}", rank, theirs.text.data()));
      }
    }
    return {};
  }

  const RendezvousAddress& place_;
  Milliseconds timeout_;
  Deadline deadline_;
  UniqueFd listener_;
  std::vector<UniqueFd> guests_;
};

/// Any other rank.
class Client {
 public:
  Client(const RendezvousAddress& place, Milliseconds timeout)
      : place_(place), timeout_(timeout), deadline_(Clock::now() + timeout) {}

  std::shared_ptr<Segment> run() {
    find_host();
    const Hello hello = Hello::of(place_, false);
    send_message(host_.get(), &hello, sizeof(hello));
    UniqueFd file;
    hear(&file).obey();
    std::shared_ptr<Segment> segment;
    Verdict mine;
    try {
      segment = Segment::attach(std::move(file));
    } catch (const Error& error) {
      mine = Verdict::of(Outcome::kNoMemory, without_rank_suffix(error.what()));
    }
    send_message(host_.get(), &mine, sizeof(mine));
    hear(nullptr).obey();
    return segment;
  }

 private:
  void find_host() {
    auto pause = std::chrono::microseconds(200);
    while (!(host_ = connect_local(place_.name)).is_open()) {
      const std::string fault = ask(gloo_name(place_), Hello::of(place_, false));
      if (!fault.empty()) {
        throw CommError("join", fault, 0);
      }
      if (Clock::now() > deadline_) {
        throw CommError(
            "join",
            fmt::format(
                "cannot reach rank 0 at '{}' on this host within {:.1f} s; is rank 0 alive, and "
                "MASTER_PORT right?",
                place_.name,
                seconds_of(timeout_)),
            0,
            seconds_of(timeout_));
      }
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, std::chrono::microseconds(5000));
    }
    if (peer_of(host_.get()).user != ::geteuid()) {
      throw CommError(
          "join",
          fmt::format("a process of another user pretends to be rank 0 at '{}'", place_.name));
    }
  }

  Verdict hear(UniqueFd* file) const {
    // Rank 0 knows who is missing, so it is left the time to say so.
    if (!readable(host_.get(), deadline_ + std::chrono::seconds(2))) {
      throw CommError(
          "join",
          fmt::format("the ranks did not all join within {:.1f} s", seconds_of(timeout_)),
          -1,
          seconds_of(timeout_));
    }
    Verdict verdict;
    if (!receive_message(host_.get(), &verdict, sizeof(verdict), file)) {
      throw CommError("join", "rank 0 ended before all had joined", 0);
    }
    verdict.text.back() = '\0';
    return verdict;
  }

  const RendezvousAddress& place_;
  Milliseconds timeout_;
  Deadline deadline_;
  UniqueFd host_;
};

}  // namespace

std::shared_ptr<Segment> meet(const RendezvousAddress& place, Milliseconds timeout) {
  if (place.rank == 0) {
    return Host(place, timeout).run();
  }
  return Client(place, timeout).run();
}

JoinResponder::JoinResponder(const RendezvousAddress& place)
    : place_(place), listener_(listen_local(gloo_name(place))) {}

std::string JoinResponder::answer() {
  while (listener_.is_open() && readable(listener_.get(), Clock::now())) {
    const UniqueFd connection(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    Hello hello;
    if (!connection.is_open() || peer_of(connection.get()).user != ::geteuid() ||
        !readable(connection.get(), Clock::now() + kHelloPatience) ||
        !receive_message(connection.get(), &hello, sizeof(hello)) || hello.magic != kHelloMagic) {
      continue;
    }
    hello.comm.back() = '\0';
    const std::string fault = disagreement(place_.name, Hello::of(place_, true), hello);
    const Verdict verdict = fault.empty() ? Verdict{} : Verdict::of(Outcome::kNoRendezvous, fault);
    send_message(connection.get(), &verdict, sizeof(verdict));
    if (!fault.empty()) {
      return fault;
    }
  }
  return {};
}

std::string ask_rank_0(const RendezvousAddress& place) {
  return ask(place.name, Hello::of(place, true));
}

}  // namespace lockstep::comm::shm
