// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/shm/member.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/comm/shm/futex.h"

namespace lockstep::comm::shm {

Member::Member(std::shared_ptr<Segment> segment, int rank)
    : segment_(std::move(segment)),
      rank_(rank),
      channels_to_(static_cast<size_t>(size())),
      channels_from_(static_cast<size_t>(size())),
      processes_(static_cast<size_t>(size())) {
  Control& mine = segment_->control(rank_);
  mine.pid = ::getpid();
  mine.state.store(RankState::kJoined, std::memory_order_seq_cst);
}

Member::~Member() {
  leave();
}

void Member::leave() {
  RankState joined = RankState::kJoined;
  segment_->control(rank_).state.compare_exchange_strong(
      joined, RankState::kLeft, std::memory_order_seq_cst);
  wake_all();
}

void Member::wake_all() {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank_) {
      wake(segment_->control(peer));
    }
  }
}

void Member::publish() {
  segment_->control(rank_).published.store(++phase_, std::memory_order_seq_cst);
  wake_all();
}

bool Member::all_published() const {
  for (int peer = 0; peer < size(); ++peer) {
    if (segment_->control(peer).published.load(std::memory_order_acquire) < phase_) {
      return false;
    }
  }
  return true;
}

std::vector<int> Member::missing() const {
  std::vector<int> ranks;
  for (int peer = 0; peer < size(); ++peer) {
    if (segment_->control(peer).published.load(std::memory_order_acquire) < phase_) {
      ranks.push_back(peer);
    }
  }
  return ranks;
}

Channel& Member::channel(int from, int to) {
  const bool outgoing = from == rank_;
  auto exists =
      (outgoing ? channels_to_ : channels_from_)[static_cast<size_t>(outgoing ? to : from)];
  if (!exists) {
    segment_->reserve_channel(from, to);
    exists = true;
  }
  return segment_->channel(from, to);
}

void Member::watch_peers() {
  for (int peer = 0; peer < size(); ++peer) {
    const pid_t pid = segment_->control(peer).pid;
    if (pid != ::getpid()) {  // Equal for ranks that are threads of this process.
      processes_[static_cast<size_t>(peer)].reset(
          static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    }
  }
}

bool Member::has_died(int peer) const {
  const pid_t pid = segment_->control(peer).pid;
  if (pid == ::getpid()) {
    return false;
  }
  const UniqueFd& process = processes_[static_cast<size_t>(peer)];
  if (!process.is_open()) {  // It died before watch_peers(), or the kernel has no pidfds.
    return ::kill(pid, 0) != 0 && errno == ESRCH;
  }
  pollfd ended{.fd = process.get(), .events = POLLIN, .revents = 0};
  return ::poll(&ended, 1, 0) == 1 && (ended.revents & POLLIN) != 0;
}

std::optional<Member::LostRank> Member::lost(const std::vector<int>& awaited) const {
  for (const int peer : awaited) {
    const Control& theirs = segment_->control(peer);
    const RankState state = theirs.state.load(std::memory_order_acquire);
    if (state == RankState::kLeft) {
      return LostRank{peer, fmt::format("rank {} has left the group", peer)};
    }
    if (state == RankState::kJoined && has_died(peer)) {
      return LostRank{peer, fmt::format("rank {} (process {}) has died", peer, theirs.pid)};
    }
  }
  for (int peer = 0; peer < size(); ++peer) {
    const Control& theirs = segment_->control(peer);
    if (peer != rank_ && theirs.state.load(std::memory_order_acquire) == RankState::kFailed) {
      return LostRank{peer, fmt::format("rank {} failed: {}", peer, theirs.why.data())};
    }
  }
  return std::nullopt;
}

void Member::fail(const std::string& why) {
  Control& mine = segment_->control(rank_);
  if (mine.state.load(std::memory_order_relaxed) != RankState::kJoined) {
    return;
  }
  const size_t length = std::min(why.size(), mine.why.size() - 1);
  std::memcpy(mine.why.data(), why.data(), length);
  mine.why[length] = '\0';
  mine.state.store(RankState::kFailed, std::memory_order_seq_cst);
  wake_all();
}

}  // namespace lockstep::comm::shm
