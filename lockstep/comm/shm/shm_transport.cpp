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
#include "lockstep/comm/shm/arena.h"
#include "lockstep/comm/shm/member.h"
#include "lockstep/comm/shm/progress_engine.h"
#include "lockstep/comm/shm/rendezvous.h"
#include "lockstep/comm/transport/exchange.h"
#include "lockstep/comm/transport/flight.h"
#include "lockstep/comm/transport/rank_number.h"
#include "lockstep/comm/transport/transport_error.h"

namespace lockstep::comm {
namespace {

using shm::Member;
using shm::ProgressEngine;
using shm::Segment;

class ShmTransport final : public Transport {
 public:
  /// Connects to the other ranks.
  ShmTransport(const shm::RendezvousAddress& address, uint64_t group, Milliseconds timeout)
      : ShmTransport(address.name, shm::rendezvous(address, timeout), address.rank, group) {
    start({.op = Op::kBarrier}, timeout)->wait(timeout);
    progress_engine_->watch_peers();
    // No rank may end, and its process id be reused, before all ranks watch it.
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
    check_cpu_tensors(collective, "shm");
    return progress_engine_->start(std::move(collective));
  }

  at::Tensor allocate(int64_t bytes) override { return arena_->allocate(bytes); }

  at::Tensor allocate_shared(int64_t bytes, Milliseconds timeout) override {
    // Rank 0's arena never frees it, so a tensor over it stays valid after rank 0 has left.
    struct Allocation {
      int64_t offset = -1;
      std::array<char, 192> fault{};
    };
    Allocation mine;
    if (rank() == 0) {
      try {
        mine.offset =
            arena_->take(static_cast<size_t>(bytes)) - progress_engine_->segment()->arena(0);
      } catch (const Error& error) {
        without_rank_suffix(error.what()).copy(mine.fault.data(), mine.fault.size() - 1);
      }
    }
    const Allocation allocated = exchange(*this, mine, timeout).front();
    if (allocated.offset < 0) {
      throw Error("shared_zeros", fmt::format("rank 0: {}", allocated.fault.data()));
    }
    return at::from_blob(
        progress_engine_->segment()->arena(0) + allocated.offset,
        {bytes},
        [segment = progress_engine_->segment()](void*) {},
        at::TensorOptions(at::kByte));
  }

  void set_number(uint64_t number) override {
    progress_engine_->segment()->control(rank()).number.store(number);
  }

  uint64_t number_of(int rank, Milliseconds timeout) override {
    const std::atomic<uint64_t>& number = progress_engine_->segment()->control(rank).number;
    return await_number(rank, timeout, [&] { return number.load(); });
  }

  NextMessage next_message(int from, int tag) override {
    return progress_engine_->next_message(from, tag);
  }

  std::shared_ptr<Transport> split(int color, int key, Milliseconds timeout) override {
    const std::vector<int> members =
        members_of(exchange(*this, SplitChoice{color, key}, timeout), color);
    const int64_t split = splits_++;
    return std::make_shared<ShmTransport>(
        shm::RendezvousAddress{
            .name = fmt::format("{}/{}.{}", name_, split, color),
            .rank = index_in(members, rank()),
            .size = static_cast<int>(members.size())},
        flight_group(progress_engine_->group(), split, color),
        timeout);
  }

 private:
  std::string name_;  ///< The rendezvous name, and the prefix of those of subgroups.
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
    const shm::RendezvousAddress& address, uint64_t group, Milliseconds join_timeout) {
  return std::make_shared<ShmTransport>(address, group, join_timeout);
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
