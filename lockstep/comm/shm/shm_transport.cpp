// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/shm/shm_transport.h"

#include <array>
#include <atomic>
#include <string>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include <ATen/ops/from_blob.h>

#include "lockstep/base/error.h"
#include "lockstep/base/rank.h"
#include "lockstep/comm/cpu_only.h"
#include "lockstep/comm/plain_values.h"
#include "lockstep/comm/shm/arena.h"
#include "lockstep/comm/shm/member.h"
#include "lockstep/comm/shm/progress_engine.h"
#include "lockstep/comm/shm/rendezvous.h"
#include "lockstep/comm/split_choice.h"
#include "lockstep/comm/transport/flight.h"

namespace lockstep::comm {
namespace {

using shm::Member;
using shm::ProgressEngine;
using shm::Segment;

class ShmTransport final : public Transport {
 public:
  /// Meets the other ranks.
  ShmTransport(const shm::RendezvousAddress& place, uint64_t group, Milliseconds timeout)
      : ShmTransport(place.name, shm::meet(place, timeout), place.rank, group) {
    start({.op = Op::kBarrier}, timeout)->wait(timeout);
    progress_engine_->watch_peers();
    // Nobody may end, and its number come to mean another process, before all watch it.
    start({.op = Op::kBarrier}, timeout)->wait(timeout);
  }
  ShmTransport(std::string name, std::shared_ptr<Segment> segment, int rank, uint64_t group)
      : name_(std::move(name)),
        arena_(std::make_shared<shm::Arena>(segment, rank)),
        progress_engine_(std::make_shared<ProgressEngine>(
            std::make_unique<Member>(std::move(segment), rank), group)) {}
  ~ShmTransport() override { progress_engine_->close(); }

  const char* name() const override { return "shm"; }
  int rank() const override { return progress_engine_->rank(); }
  int size() const override { return progress_engine_->size(); }

  std::shared_ptr<Work> start(Collective collective, Milliseconds /*timeout*/) override {
    refuse_other_devices(collective, "shared memory moves");
    return progress_engine_->start(std::move(collective));
  }

  at::Tensor allocate(int64_t bytes) override { return arena_->allocate(bytes); }

  at::Tensor allocate_shared(int64_t bytes, Milliseconds timeout) override {
    // In rank 0's arena for good: who still has a tensor over it when rank 0 leaves keeps it.
    struct Place {
      int64_t offset = -1;
      std::array<char, 192> fault{};
    };
    Place mine;
    if (rank() == 0) {
      try {
        mine.offset =
            arena_->take(static_cast<size_t>(bytes)) - progress_engine_->segment()->arena(0);
      } catch (const Error& error) {
        without_rank_suffix(error.what()).copy(mine.fault.data(), mine.fault.size() - 1);
      }
    }
    const Place place = exchange(*this, mine, timeout).front();
    if (place.offset < 0) {
      throw Error("shared_zeros", fmt::format("rank 0: {}", place.fault.data()));
    }
    return at::from_blob(
        progress_engine_->segment()->arena(0) + place.offset,
        {bytes},
        [segment = progress_engine_->segment()](void*) {},
        at::TensorOptions(at::kByte));
  }

  std::shared_ptr<Transport> split(int color, int key, Milliseconds timeout) override {
    const std::vector<int> members =
        members_of(exchange(*this, SplitChoice{color, key}, timeout), color);
    const int64_t split = splits_++;
    return std::make_shared<ShmTransport>(
        shm::RendezvousAddress{
            .name = fmt::format("{}/{}.{}", name_, split, color),
            .rank = place_of(members, rank()),
            .size = static_cast<int>(members.size())},
        flight_group(progress_engine_->group(), split, color),
        timeout);
  }

 private:
  std::string name_;  ///< Of the meeting place, under which those of parts lie.
  std::shared_ptr<shm::Arena> arena_;
  std::shared_ptr<ProgressEngine> progress_engine_;
  int64_t splits_ = 0;
};

}  // namespace

shm::RendezvousAddress rendezvous_address_of(const WorldSpec& world, const std::string& comm) {
  return {
      .name = fmt::format("lockstep/{}/{}/{}", ::geteuid(), world.master_port, world.restart_count),
      .rank = world.rank,
      .size = world.size,
      .local_size = world.local_size,
      .comm = comm,
      .master_addr = world.master_addr};
}

std::shared_ptr<Transport> make_shm_transport(
    const shm::RendezvousAddress& place, uint64_t group, Milliseconds join_timeout) {
  return std::make_shared<ShmTransport>(place, group, join_timeout);
}

std::vector<std::shared_ptr<Transport>> make_shm_thread_transports(shm::SegmentSizes sizes) {
  static std::atomic<int> groups{0};
  const std::string name = fmt::format("lockstep/threads/{}/{}", ::getpid(), groups++);
  const auto segment = Segment::create(sizes);
  std::vector<std::shared_ptr<Transport>> transports;
  for (int rank = 0; rank < sizes.ranks; ++rank) {
    transports.push_back(std::make_shared<ShmTransport>(name, segment, rank, kWorldGroup));
  }
  return transports;
}

}  // namespace lockstep::comm
