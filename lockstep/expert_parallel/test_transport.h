// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/group.h"

namespace lockstep::expert_parallel {

/// Counts operations and their bytes on one rank, and leaves some of them out. For tests.
struct WatchedOperations {
  struct Sum {
    int64_t operations = 0;
    int64_t bytes = 0;  ///< Of the whole input.
  };
  std::map<comm::Op, Sum> sums;
  /// The all_to_all with this number (from 0) returns its own input; -1: none.
  int64_t left_out = -1;
  std::function<void()> before;  ///< Called before each operation, if any.
};

/// Forwards the operations of expert parallelism to another group; refuses all others.
class WatchedTransport final : public comm::Transport {
 public:
  WatchedTransport(Group inner, WatchedOperations& watched)
      : inner_(std::move(inner)), watched_(&watched) {}

  const char* name() const override { return "watched"; }
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }

  std::shared_ptr<comm::Work> start(
      comm::Collective collective, comm::Milliseconds /*timeout*/) override {
    if (watched_->before) {
      watched_->before();
    }
    WatchedOperations::Sum& sum = watched_->sums[collective.op];
    const bool is_left_out =
        collective.op == comm::Op::kAllToAll && sum.operations == watched_->left_out;
    ++sum.operations;
    switch (collective.op) {
      case comm::Op::kAllToAll:
        sum.bytes += static_cast<int64_t>(collective.input.nbytes());
        if (is_left_out) {
          collective.output.copy_(collective.input);
          return std::make_shared<Done>(Pending(collective.output));
        }
        return std::make_shared<Done>(inner_.all_to_all_into(collective.output, collective.input));
      case comm::Op::kAllGather:
        sum.bytes += static_cast<int64_t>(collective.input.nbytes());
        return std::make_shared<Done>(inner_.all_gather_into(collective.output, collective.input));
      case comm::Op::kAllReduce:
        sum.bytes += static_cast<int64_t>(collective.output.nbytes());
        return std::make_shared<Done>(inner_.all_reduce(collective.output, collective.reduce));
      default:
        throw ConfigError(comm::name_of(collective.op), "is not watched");
    }
  }

  std::shared_ptr<comm::Transport> split(
      int /*color*/, int /*key*/, comm::Milliseconds /*timeout*/) override {
    throw ConfigError("split", "is not watched");
  }

 private:
  class Done final : public comm::Work {
   public:
    explicit Done(Pending pending) : pending_(std::move(pending)) {}
    bool done() const override { return pending_.done(); }
    void wait(comm::Milliseconds timeout) override { pending_.wait(timeout); }

   private:
    Pending pending_;
  };

  Group inner_;
  WatchedOperations* watched_;
};

inline Group watched(const Group& group, WatchedOperations& operations) {
  return Group(std::make_shared<WatchedTransport>(group, operations), group.timeout());
}

}  // namespace lockstep::expert_parallel
