// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/hierarchy/hierarchy_transport.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/rank.h"
#include "lockstep/comm/hierarchy/host_collectives.h"
#include "lockstep/comm/shm/shm_transport.h"
#include "lockstep/comm/transport/blocking_operations.h"
#include "lockstep/comm/transport/exchange.h"
#include "lockstep/comm/transport/flight.h"
#include "lockstep/comm/transport/transport_error.h"

namespace lockstep::comm {
namespace {

// The split number of the local groups in the flight record; no split of the world has it.
constexpr int64_t kLocalSplit = -1;

/// Warns that the ranks of a host cannot share memory, for the reason `why`.
void warn_about_gloo(const std::string& why) {
  log_warning(
      "shared memory is not available within each host; the job uses Gloo, which is slower: " +
      why);
}

/// Holds the state that the progress threads share with the transport. It outlives the transport if
/// an operation does.
class HierarchyState {
 public:
  HierarchyState(RanksByHost by_host, const HostTransports& transports)
      : by_host_(std::move(by_host)),
        all_ranks_(transports.all_ranks),
        local_(transports.local),
        collectives_(std::in_place, by_host_, transports) {}

  const RanksByHost& by_host() const { return by_host_; }
  /// Returns null once this rank has left.
  std::shared_ptr<Transport> all_ranks() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return all_ranks_;
  }
  /// Returns the connection of all ranks. Throws CommError once this rank has left.
  std::shared_ptr<Transport> connected_ranks(Op op) {
    auto link = all_ranks();
    if (!link) {
      failure_.check(op);
    }
    return link;
  }
  std::shared_ptr<Transport> local() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return local_;
  }

  void mark_failed(const std::string& why) { failure_.mark_failed(why); }

  /// Called on the thread of the collectives.
  void collective(const Collective& c, int64_t sequence, Milliseconds timeout) {
    try {
      guarded(c.op, [&] { collectives_->run(c, sequence, timeout); });
    } catch (const CommError&) {
      leave();
      throw;
    }
  }

  void point_to_point(const Collective& c, Milliseconds timeout) {
    guarded(c.op, [&] { connected_ranks(c.op)->start(c, timeout)->wait(timeout); });
  }

  template <typename Body>
  void guarded(Op op, const Body& body) {
    failure_.check(op);
    const FlightRecordingPause pause;
    const c10::AutoGradMode no_grad(false);
    try {
      body();
    } catch (const CommError& error) {
      mark_failed(without_rank_suffix(error.what()));
      throw;
    } catch (const std::exception& error) {  // No memory.
      const std::string why = without_rank_suffix(error.what());
      mark_failed(fmt::format("{} {}", name_of(op), why));
      throw CommError(name_of(op), why);
    }
  }

 private:
  /// Closes the transports at which other ranks wait for this one.
  void leave() {
    collectives_.reset();
    std::shared_ptr<Transport> all_ranks;
    std::shared_ptr<Transport> local;
    const std::lock_guard<std::mutex> lock(mutex_);
    all_ranks.swap(all_ranks_);
    local.swap(local_);
  }

  const RanksByHost by_host_;
  GroupFailure failure_;
  mutable std::mutex mutex_;  ///< Protects the two below.
  std::shared_ptr<Transport> all_ranks_, local_;
  std::optional<HostCollectives> collectives_;  ///< Used only by the collectives' thread.
};

class HierarchyTransport final : public Transport {
 public:
  HierarchyTransport(RanksByHost by_host, const HostTransports& transports, uint64_t group)
      : rank_(transports.all_ranks->rank()),
        size_(transports.all_ranks->size()),
        group_(group),
        state_(std::make_shared<HierarchyState>(std::move(by_host), transports)),
        operations_(state_, group) {}

  const char* name() const override { return "shm+gloo"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::shared_ptr<Work> start(Collective collective, Milliseconds timeout) override {
    check_cpu_tensors(collective, "shm+gloo");
    return operations_.start(std::move(collective), timeout);
  }

  at::Tensor allocate(int64_t bytes) override {
    const auto local = state_->local();
    return local ? local->allocate(bytes) : Transport::allocate(bytes);
  }

  void set_number(uint64_t number) override {
    state_->connected_ranks(Op::kBarrier)->set_number(number);
  }

  uint64_t number_of(int rank, Milliseconds timeout) override {
    return state_->connected_ranks(Op::kBarrier)->number_of(rank, timeout);
  }

  NextMessage next_message(int from, int tag) override {
    return operations_.may_receive(from)
               ? state_->connected_ranks(Op::kRecv)->next_message(from, tag)
               : NextMessage::kNone;
  }

  std::shared_ptr<Transport> split(int color, int key, Milliseconds timeout) override;

 private:
  int rank_, size_;
  uint64_t group_;  ///< Its id in the flight record.
  std::shared_ptr<HierarchyState> state_;
  BlockingOperations<HierarchyState> operations_;
  int64_t splits_ = 0;
};

/// Returns the hosts of the subgroup of `color`, by the ranks in it.
RanksByHost part_by_host(
    const RanksByHost& parent, const std::vector<SplitChoice>& choices, int64_t color) {
  const std::vector<int> members = members_of(choices, color);
  std::vector<std::vector<int>> hosts(static_cast<size_t>(parent.hosts()));
  for (size_t rank = 0; rank < members.size(); ++rank) {
    hosts[static_cast<size_t>(parent.host_of(members[rank]))].push_back(static_cast<int>(rank));
  }
  std::erase_if(hosts, [](const auto& ranks) { return ranks.empty(); });
  return RanksByHost(std::move(hosts));
}

std::shared_ptr<Transport> HierarchyTransport::split(int color, int key, Milliseconds timeout) {
  // The exchange runs after all operations that were started before: none is running afterwards.
  const auto choices = exchange(*this, SplitChoice{color, key}, timeout);
  RanksByHost part = part_by_host(state_->by_host(), choices, color);
  const uint64_t group = flight_group(group_, kLocalSplit - 1 - splits_++, color);
  const bool one_host = part.hosts() == 1;
  std::vector<int64_t> multi_host_colors;
  for (const SplitChoice& choice : choices) {
    if (part_by_host(state_->by_host(), choices, choice.color).hosts() > 1) {
      multi_host_colors.push_back(choice.color);
    }
  }
  std::shared_ptr<Transport> local_part;
  std::string fault;
  const MakeLocal make_local = [&] {
    if (!local_part) {
      throw Error("split", fault);
    }
    return local_part;
  };
  std::shared_ptr<Transport> multi_host_part;
  state_->guarded(Op::kBarrier, [&] {
    // All ranks of the host must split its group, even those that do not need the result.
    try {
      local_part = state_->local()->split(color, key, timeout);
    } catch (const CommError&) {
      throw;
    } catch (const Error& error) {
      fault = without_rank_suffix(error.what());
    }
    // All ranks split the group of all ranks, if any rank needs its part. The others get groups of
    // one.
    if (!multi_host_colors.empty()) {
      const auto found = std::find(multi_host_colors.begin(), multi_host_colors.end(), color);
      const auto number =
          one_host ? size_ + rank_ : static_cast<int>(found - multi_host_colors.begin());
      const auto flat_part = state_->all_ranks()->split(number, key, timeout);
      multi_host_part = one_host ? nullptr
                                 : make_hierarchy_transport(
                                       flat_part, std::move(part), make_local, group, timeout);
    }
  });
  return one_host ? make_local() : multi_host_part;
}

}  // namespace

std::shared_ptr<Transport> make_hierarchy_transport(
    std::shared_ptr<Transport> all_ranks,
    RanksByHost by_host,
    const MakeLocal& make_local,
    uint64_t group,
    Milliseconds timeout) {
  if (by_host.largest() == 1) {
    return all_ranks;
  }
  struct Fault {
    std::array<char, 512> text{};
  };
  Fault mine;
  HostTransports transports{.all_ranks = all_ranks, .local = nullptr, .cross = nullptr};
  try {
    transports.local = make_local();
  } catch (const Error& error) {
    without_rank_suffix(error.what()).copy(mine.text.data(), mine.text.size() - 1);
  }
  const auto faults = exchange(*all_ranks, mine, timeout);
  for (size_t rank = 0; rank < faults.size(); ++rank) {
    if (faults[rank].text[0] != '\0') {
      warn_about_gloo(
          fmt::format("rank {}: {}", rank, static_cast<const char*>(faults[rank].text.data())));
      return all_ranks;
    }
  }
  const int rank = all_ranks->rank();
  const int index = by_host.index_of(rank);
  // A rank without a counterpart on every host gets a group of one.
  const bool has_cross = by_host.equal() || index == 0;
  transports.cross = all_ranks->split(
      has_cross ? index : by_host.largest() + rank, by_host.host_of(rank), timeout);
  if (!has_cross) {
    transports.cross.reset();
  }
  return std::make_shared<HierarchyTransport>(std::move(by_host), transports, group);
}

std::shared_ptr<Transport> make_hierarchy_transport(
    const WorldSpec& world,
    std::shared_ptr<Transport> all_ranks,
    uint64_t group,
    Milliseconds join_timeout) {
  const FlightRecordingPause pause;
  const auto by_rank = exchange(*all_ranks, RankLocation::of(world), join_timeout);
  std::optional<RanksByHost> by_host;
  try {
    by_host = RanksByHost::of(by_rank);
  } catch (const Error& error) {  // On all ranks, since all have the same locations.
    warn_about_gloo(without_rank_suffix(error.what()));
    return all_ranks;
  }
  const int host = by_host->host_of(world.rank);
  const std::vector<int>& members = by_host->ranks_of(host);
  log_debug(fmt::format(
      "the job has {} hosts with at most {} ranks each; this host is number {} with {} ranks",
      by_host->hosts(),
      by_host->largest(),
      host,
      members.size()));
  const shm::RendezvousAddress address{
      .name = fmt::format(
          "lockstep/hosts/{:016x}", by_rank[static_cast<size_t>(members.front())].token),
      .rank = by_host->index_of(world.rank),
      .size = static_cast<int>(members.size())};
  const MakeLocal make_local = [&] {
    return make_shm_transport(
        address, flight_group(group, kLocalSplit, members.front()), join_timeout);
  };
  return make_hierarchy_transport(std::move(all_ranks), *by_host, make_local, group, join_timeout);
}

}  // namespace lockstep::comm
