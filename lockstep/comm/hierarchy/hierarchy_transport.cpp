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
#include "lockstep/comm/cpu_only.h"
#include "lockstep/comm/group_error.h"
#include "lockstep/comm/hierarchy/host_collectives.h"
#include "lockstep/comm/plain_values.h"
#include "lockstep/comm/shm/shm_transport.h"
#include "lockstep/comm/split_choice.h"
#include "lockstep/comm/transport/blocking_operations.h"
#include "lockstep/comm/transport/flight.h"

namespace lockstep::comm {
namespace {

// Of the local groups in the flight record: no split of the world's has this number.
constexpr int64_t kLocalSplit = -1;

/// What the progress threads share with the transport; it outlives the transport if an operation
/// does.
class HierarchyState {
 public:
  HierarchyState(Layout layout, const HostLinks& links)
      : layout_(std::move(layout)),
        flat_(links.flat),
        local_(links.local),
        collectives_(std::in_place, layout_, links) {}

  const Layout& layout() const { return layout_; }
  /// Nothing once this rank has left.
  std::shared_ptr<Transport> flat() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return flat_;
  }
  std::shared_ptr<Transport> local() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return local_;
  }

  void mark_failed(const std::string& why) { death_.mark_failed(why); }

  /// On the thread of the collectives.
  void collective(const Collective& c, int64_t sequence, Milliseconds timeout) {
    try {
      guarded(c.op, [&] { collectives_->run(c, sequence, timeout); });
    } catch (const CommError&) {
      leave();
      throw;
    }
  }

  void point_to_point(const Collective& c, Milliseconds timeout) {
    guarded(c.op, [&] {
      const auto link = flat();
      if (!link) {
        death_.refuse(c.op);
      }
      link->start(c, timeout)->wait(timeout);
    });
  }

  template <typename Body>
  void guarded(Op op, const Body& body) {
    death_.refuse(op);
    const FlightRecordingPause parts_of_one;
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
  /// Closes what others wait at for this rank.
  void leave() {
    collectives_.reset();
    std::shared_ptr<Transport> flat;
    std::shared_ptr<Transport> local;
    const std::lock_guard<std::mutex> lock(mutex_);
    flat.swap(flat_);
    local.swap(local_);
  }

  const Layout layout_;
  GroupError death_;
  mutable std::mutex mutex_;  ///< Of the two below.
  std::shared_ptr<Transport> flat_, local_;
  std::optional<HostCollectives> collectives_;  ///< Only the collectives' thread touches it.
};

class HierarchyTransport final : public Transport {
 public:
  HierarchyTransport(Layout layout, const HostLinks& links, uint64_t group)
      : rank_(links.flat->rank()),
        size_(links.flat->size()),
        group_(group),
        link_(std::make_shared<HierarchyState>(std::move(layout), links)),
        operations_(link_, group) {}

  const char* name() const override { return "shm+gloo"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::shared_ptr<Work> start(Collective collective, Milliseconds timeout) override {
    refuse_other_devices(collective, "shared memory and Gloo move");
    return operations_.start(std::move(collective), timeout);
  }

  at::Tensor allocate(int64_t bytes) override {
    const auto local = link_->local();
    return local ? local->allocate(bytes) : Transport::allocate(bytes);
  }

  std::shared_ptr<Transport> split(int color, int key, Milliseconds timeout) override;

 private:
  int rank_, size_;
  uint64_t group_;  ///< In the flight record.
  std::shared_ptr<HierarchyState> link_;
  BlockingOperations<HierarchyState> operations_;
  int64_t splits_ = 0;
};

/// Where the members of a part are, by their ranks in it.
Layout layout_of_part(const Layout& whole, const std::vector<SplitChoice>& choices, int64_t color) {
  const std::vector<int> members = members_of(choices, color);
  std::vector<std::vector<int>> hosts(static_cast<size_t>(whole.hosts()));
  for (size_t rank = 0; rank < members.size(); ++rank) {
    hosts[static_cast<size_t>(whole.host_of(members[rank]))].push_back(static_cast<int>(rank));
  }
  std::erase_if(hosts, [](const auto& ranks) { return ranks.empty(); });
  return Layout(std::move(hosts));
}

std::shared_ptr<Transport> HierarchyTransport::split(int color, int key, Milliseconds timeout) {
  // In order after all that was started before: from here on nothing else is under way.
  const auto choices = exchange(*this, SplitChoice{color, key}, timeout);
  Layout part = layout_of_part(link_->layout(), choices, color);
  const uint64_t group = flight_group(group_, kLocalSplit - 1 - splits_++, color);
  const bool here_only = part.hosts() == 1;
  std::vector<int64_t> far_colors;
  for (const SplitChoice& choice : choices) {
    if (layout_of_part(link_->layout(), choices, choice.color).hosts() > 1) {
      far_colors.push_back(choice.color);
    }
  }
  std::shared_ptr<Transport> local_part;
  std::string fault;
  const MakeLocal made = [&] {
    if (!local_part) {
      throw Error("split", fault);
    }
    return local_part;
  };
  std::shared_ptr<Transport> far_part;
  link_->guarded(Op::kBarrier, [&] {
    // All ranks of the host split its group, whatever they then need.
    try {
      local_part = link_->local()->split(color, key, timeout);
    } catch (const CommError&) {
      throw;
    } catch (const Error& error) {
      fault = without_rank_suffix(error.what());
    }
    // And all ranks split the flat one, unless nobody needs it; who does not is alone there.
    if (!far_colors.empty()) {
      const auto place = std::find(far_colors.begin(), far_colors.end(), color);
      const auto number = here_only ? size_ + rank_ : static_cast<int>(place - far_colors.begin());
      const auto flat_part = link_->flat()->split(number, key, timeout);
      far_part = here_only ? nullptr : over_hosts(flat_part, std::move(part), made, group, timeout);
    }
  });
  return here_only ? made() : far_part;
}

}  // namespace

std::shared_ptr<Transport> over_hosts(
    std::shared_ptr<Transport> flat,
    Layout layout,
    const MakeLocal& make_local,
    uint64_t group,
    Milliseconds timeout) {
  if (layout.largest() == 1) {
    return flat;
  }
  struct Fault {
    std::array<char, 512> text{};
  };
  Fault mine;
  HostLinks links{.flat = flat, .local = nullptr, .cross = nullptr};
  try {
    links.local = make_local();
  } catch (const Error& error) {
    without_rank_suffix(error.what()).copy(mine.text.data(), mine.text.size() - 1);
  }
  const auto faults = exchange(*flat, mine, timeout);
  for (size_t rank = 0; rank < faults.size(); ++rank) {
    if (faults[rank].text[0] != '\0') {
      log_warning(fmt::format(
          "Gloo instead of shared memory within each host, which is slower: rank {}: {}",
          rank,
          static_cast<const char*>(faults[rank].text.data())));
      return flat;
    }
  }
  const int rank = flat->rank();
  const int index = layout.index_of(rank);
  // Who has no counterpart on every host is alone there.
  const bool has_cross = layout.equal() || index == 0;
  links.cross =
      flat->split(has_cross ? index : layout.largest() + rank, layout.host_of(rank), timeout);
  if (!has_cross) {
    links.cross.reset();
  }
  return std::make_shared<HierarchyTransport>(std::move(layout), links, group);
}

std::shared_ptr<Transport> over_hosts(
    const WorldSpec& world, std::shared_ptr<Transport> flat, Milliseconds join_timeout) {
  const FlightRecordingPause not_the_users;
  const auto by_rank = exchange(*flat, RankLocation::of(world), join_timeout);
  std::optional<Layout> layout;
  try {
    layout = Layout::of(by_rank);
  } catch (const Error& error) {  // On all ranks: they have heard the same.
    log_warning(
        "Gloo instead of shared memory within each host, which is slower: " +
        without_rank_suffix(error.what()));
    return flat;
  }
  const int host = layout->host_of(world.rank);
  const std::vector<int>& members = layout->ranks_of(host);
  log_debug(fmt::format(
      "{} hosts with {} ranks at most; this one is number {} with {}",
      layout->hosts(),
      layout->largest(),
      host,
      members.size()));
  const shm::RendezvousAddress place{
      .name = fmt::format(
          "lockstep/hosts/{:016x}", by_rank[static_cast<size_t>(members.front())].token),
      .rank = layout->index_of(world.rank),
      .size = static_cast<int>(members.size())};
  const MakeLocal meet = [&] {
    return make_shm_transport(
        place, flight_group(kWorldGroup, kLocalSplit, members.front()), join_timeout);
  };
  return over_hosts(std::move(flat), *layout, meet, kWorldGroup, join_timeout);
}

}  // namespace lockstep::comm
