// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/full.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/group.h"

namespace lockstep::zero {

/// Bytes that cross between hosts, summed over all ranks. For tests.
///
/// It counts the minimum, as comm/hierarchy sends it: each host receives a missing value once, and
/// ranks of a host add up before they send. For a group on H hosts, and an operation whose full
/// result has B bytes:
///
///     all_gather, broadcast    B (H-1)      every host gets what it lacks
///     reduce_scatter           B (H-1)      every host sends one sum for each part it does not own
///     all_reduce               2 B (H-1)    a reduce_scatter, then an all_gather
///     all_to_all               the exact bytes from ranks to ranks on other hosts
///
/// A stage 3 step of M bytes of parameters on two hosts gathers twice and reduces once: 3M. The 128
/// bytes of Group's check and the messages of a barrier are not counted. Thread-safe.
class HostTraffic {
 public:
  explicit HostTraffic(int ranks_per_host) : ranks_per_host_(ranks_per_host) {}

  int host_of(int rank) const { return rank / ranks_per_host_; }
  void add(comm::Op op, at::ScalarType dtype, int64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    bytes_[{op, dtype}] += bytes;
  }
  void reset() {
    const std::lock_guard<std::mutex> lock(mutex_);
    bytes_.clear();
  }
  int64_t of(comm::Op op, at::ScalarType dtype) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = bytes_.find({op, dtype});
    return found == bytes_.end() ? 0 : found->second;
  }
  int64_t total() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    int64_t sum = 0;
    for (const auto& [unused, bytes] : bytes_) {
      sum += bytes;
    }
    return sum;
  }

 private:
  const int ranks_per_host_;
  mutable std::mutex mutex_;
  std::map<std::pair<comm::Op, at::ScalarType>, int64_t> bytes_;
};

/// Forwards every operation to another group; its first rank counts. Operations that ZeRO does not
/// use are refused.
class CountingTransport final : public comm::Transport {
 public:
  /// `world_ranks`: the world ranks of the members of `inner`, in their order.
  CountingTransport(Group inner, std::vector<int> world_ranks, HostTraffic& traffic)
      : inner_(std::move(inner)), world_ranks_(std::move(world_ranks)), traffic_(&traffic) {}

  const char* name() const override { return "counting"; }
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }

  std::shared_ptr<comm::Work> start(
      comm::Collective collective, comm::Milliseconds /*timeout*/) override {
    Pending pending = forward(collective);
    if (inner_.rank() == 0) {
      count(collective);
    }
    return std::make_shared<PendingWork>(std::move(pending));
  }

  std::shared_ptr<comm::Transport> split(
      int color, int key, comm::Milliseconds /*timeout*/) override {
    Group part = inner_.split(color, key);
    const at::Tensor all =
        part.all_gather(at::full({1}, world_ranks_[inner_.rank()], at::kLong)).wait();
    const auto* first = all.const_data_ptr<int64_t>();
    return std::make_shared<CountingTransport>(
        part, std::vector<int>(first, first + part.size()), *traffic_);
  }

 private:
  class PendingWork final : public comm::Work {
   public:
    explicit PendingWork(Pending pending) : pending_(std::move(pending)) {}
    bool done() const override { return pending_.done(); }
    void wait(comm::Milliseconds timeout) override { pending_.wait(timeout); }

   private:
    Pending pending_;
  };

  Pending forward(const comm::Collective& it) {
    switch (it.op) {
      case comm::Op::kAllReduce:
        return inner_.all_reduce(it.output, it.reduce);
      case comm::Op::kReduceScatter:
        return inner_.reduce_scatter_into(it.output, it.input, it.reduce);
      case comm::Op::kAllGather:
        return inner_.all_gather_into(it.output, it.input);
      case comm::Op::kAllToAll:
        return inner_.all_to_all_into(it.output, it.input);
      case comm::Op::kBroadcast:
        return inner_.broadcast(it.output, it.root);
      default:
        throw ConfigError(comm::name_of(it.op), "is not counted");
    }
  }

  void count(const comm::Collective& it) {
    std::set<int> hosts;
    int64_t pairs = 0;  // Of ranks on different hosts.
    for (const int from : world_ranks_) {
      hosts.insert(traffic_->host_of(from));
      pairs += std::count_if(world_ranks_.begin(), world_ranks_.end(), [&](int to) {
        return traffic_->host_of(from) != traffic_->host_of(to);
      });
    }
    const auto others = static_cast<int64_t>(hosts.size()) - 1;
    const at::Tensor& full = it.op == comm::Op::kReduceScatter ? it.input : it.output;
    const auto bytes = static_cast<int64_t>(full.nbytes());
    int64_t crossing = bytes * others;
    if (it.op == comm::Op::kAllReduce) {
      crossing *= 2;
    } else if (it.op == comm::Op::kAllToAll) {
      crossing = bytes / inner_.size() * pairs;
    }
    traffic_->add(it.op, full.scalar_type(), crossing);
  }

  Group inner_;
  std::vector<int> world_ranks_;
  HostTraffic* traffic_;
};

/// Returns `group`, which must be the world, with counted operations.
inline Group counted(const Group& group, HostTraffic& traffic) {
  std::vector<int> all;
  for (int rank = 0; rank < group.size(); ++rank) {
    all.push_back(rank);
  }
  return Group(std::make_shared<CountingTransport>(group, all, traffic), group.timeout());
}

}  // namespace lockstep::zero
