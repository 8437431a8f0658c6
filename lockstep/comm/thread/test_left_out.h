// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group.h"

namespace lockstep {

/// Names the operation that this thread's rank leaves out, as if the program had no such line. For
/// negative controls: without any one operation another model is trained, or an error is thrown.
struct LeftOut {
  bool counts = false;               ///< Counts operations of floating point numbers from now on.
  int64_t collective = -1;           ///< The number of a collective to leave out.
  int64_t message = -1;              ///< The number of a send, and of a recv, to leave out.
  std::string what = {};             ///< What was left out; empty: there was no such operation.
  std::array<int64_t, 3> next = {};  ///< Of collectives, sends, recvs.
};

inline LeftOut& left_out() {
  static thread_local LeftOut state;
  return state;
}

namespace test_left_out {

/// Returns whether this thread leaves out `collective`, and counts it.
inline bool leaves_out(const comm::Collective& collective, int ranks) {
  LeftOut& state = left_out();
  const at::Tensor& tensor = collective.output.defined() ? collective.output : collective.input;
  if (!state.counts || !tensor.defined() || !tensor.is_floating_point()) {
    return false;
  }
  const bool is_send = collective.op == comm::Op::kSend;
  const bool is_recv = collective.op == comm::Op::kRecv;
  const int64_t number = state.next[is_send ? 1 : is_recv ? 2 : 0]++;
  if (number != (is_send || is_recv ? state.message : state.collective)) {
    return false;
  }
  state.what = fmt::format(
      "{} of {} on {} ranks in {}",
      comm::name_of(collective.op),
      fmt::join(tensor.sizes(), "x"),
      ranks,
      collective.call == nullptr ? "no call" : collective.call);
  return true;
}

/// Computes what this rank would have without the others.
inline void compute_alone(const comm::Collective& collective, int rank, int ranks) {
  const at::Tensor& output = collective.output;
  switch (collective.op) {
    case comm::Op::kAllGather:
      output.zero_();
      output.chunk(ranks)[static_cast<size_t>(rank)].copy_(
          collective.input.view_as(output.chunk(ranks)[static_cast<size_t>(rank)]));
      break;
    case comm::Op::kReduceScatter:
      output.copy_(collective.input.chunk(ranks)[static_cast<size_t>(rank)].view_as(output));
      break;
    case comm::Op::kAllToAll:
      output.copy_(collective.input);
      break;
    case comm::Op::kRecv:
      output.zero_();
      break;
    default:
      break;
  }
}

class PendingWork final : public comm::Work {
 public:
  explicit PendingWork(Pending pending) : pending_(std::move(pending)) {}
  bool done() const override { return pending_.done(); }
  void wait(comm::Milliseconds timeout) override { pending_.wait(timeout); }

 private:
  Pending pending_;
};

/// Passes the operations of a group on, but for the one that is left out.
class LeavingOutTransport final : public comm::Transport {
 public:
  explicit LeavingOutTransport(Group group) : group_(std::move(group)) {}
  const char* name() const override { return group_.transport_name(); }
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  bool answers_questions() const override { return false; }
  std::shared_ptr<comm::Work> start(comm::Collective collective, comm::Milliseconds) override {
    if (collective.observer) {
      collective.observer->begin();
      collective.observer->end(/*succeeded=*/true, std::nullopt);
    }
    if (leaves_out(collective, size())) {
      compute_alone(collective, rank(), size());
      return std::make_shared<PendingWork>(Pending(collective.output));
    }
    return std::make_shared<PendingWork>(passed_on(collective));
  }
  std::shared_ptr<comm::Transport> split(int color, int key, comm::Milliseconds) override {
    return std::make_shared<LeavingOutTransport>(group_.split(color, key));
  }

 private:
  Pending passed_on(const comm::Collective& c) {
    switch (c.op) {
      case comm::Op::kAllReduce:
        return group_.all_reduce(c.output, c.reduce);
      case comm::Op::kReduceScatter:
        return group_.reduce_scatter_into(c.output, c.input, c.reduce);
      case comm::Op::kAllGather:
        return group_.all_gather_into(c.output, c.input);
      case comm::Op::kAllToAll:
        return group_.all_to_all_into(c.output, c.input);
      case comm::Op::kBroadcast:
        return group_.broadcast(c.output, c.root);
      case comm::Op::kGather: {
        Pending gathered = group_.gather(c.input, c.root);
        const at::Tensor all = gathered.wait();
        if (c.output.defined()) {
          c.output.copy_(all.view_as(c.output));
        }
        return Pending(c.output);
      }
      case comm::Op::kScatter:
        return group_.scatter(c.output, c.input, c.root);
      case comm::Op::kSend:
        return group_.send(c.input, c.root, c.tag);
      case comm::Op::kRecv:
        return group_.recv(c.output, c.root, c.tag);
      case comm::Op::kBarrier:
        return group_.start_barrier();
    }
    return group_.start_barrier();
  }

  Group group_;
};

}  // namespace test_left_out

/// Returns a group whose ranks leave out the operation that left_out() names.
inline Group leaving_out(const Group& group) {
  return group.size() == 1
             ? group
             : Group(std::make_shared<test_left_out::LeavingOutTransport>(group), group.timeout());
}

}  // namespace lockstep
