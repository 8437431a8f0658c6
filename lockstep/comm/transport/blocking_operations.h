// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "lockstep/comm/transport/flight.h"
#include "lockstep/comm/transport/ordered_worker.h"
#include "lockstep/comm/transport/transport.h"

namespace lockstep::comm {

/// Runs a transport's blocking operations on progress threads. Collectives run one after the other
/// on one thread; the messages to each rank, and from each rank, have a thread of their own, which
/// starts with the first one: ranks may send and receive in any order, apart from one peer's
/// messages. Each operation is recorded in the flight record.
///
/// Cost: at most two threads for each peer, which live as long as the group. Thread safety: all
/// calls for messages are thread-safe.
///
/// `Link` is the state that those threads use; it outlives the transport if an operation does. It
/// has `collective(c, sequence, timeout)`, `point_to_point(c, timeout)`, and `mark_failed(why)`,
/// called after a caller's timeout.
///
template <typename Link>
class BlockingOperations {
 public:
  /// `group`: its id in the flight record.
  BlockingOperations(std::shared_ptr<Link> link, uint64_t group)
      : link_(std::move(link)), group_(group) {}

  std::shared_ptr<Work> start(Collective collective, Milliseconds timeout) {
    const Op op = collective.op;
    const auto on_timeout = [link = link_](const std::string& why) { link->mark_failed(why); };
    if (op == Op::kSend || op == Op::kRecv) {
      OrderedWorker& worker = worker_of(op == Op::kSend, collective.root);
      const FlightEntry entry(collective, group_, -1);
      collective.observer = nullptr;  // The entry has it; parts of the operation have none.
      return worker.submit(
          name_of(op),
          [link = link_, entry, c = std::move(collective), timeout] {
            entry.run([&] { link->point_to_point(c, timeout); });
          },
          on_timeout);
    }
    const int64_t sequence = sequence_.next(collective);
    const FlightEntry entry(collective, group_, sequence);
    collective.observer = nullptr;
    return collectives_.submit(
        name_of(op),
        [link = link_, entry, c = std::move(collective), sequence, timeout] {
          entry.run([&] { link->collective(c, sequence, timeout); });
        },
        on_timeout);
  }

  /// Returns whether no recv from this rank is queued or running.
  bool may_receive(int from) { return worker_of(/*sends=*/false, from).idle(); }
  /// Runs a job on the thread of the messages from this rank.
  void receive(int from, OrderedWorker::Job job) {
    worker_of(/*sends=*/false, from).submit(name_of(Op::kRecv), std::move(job));
  }

 private:
  /// The workers of another transport's messages may call it at the same time.
  OrderedWorker& worker_of(bool sends, int peer) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return messages_[{sends, peer}];
  }

  std::shared_ptr<Link> link_;
  uint64_t group_;
  OrderedWorker collectives_;
  std::mutex mutex_;                                        ///< Protects the map below.
  std::map<std::pair<bool, int>, OrderedWorker> messages_;  ///< By (sends, peer).
  Sequence sequence_;
};

}  // namespace lockstep::comm
