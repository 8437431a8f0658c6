// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/shm/member.h"
#include "lockstep/comm/transport/transport.h"

namespace lockstep::comm::shm {

class QueuedOperation;

/// Runs a rank's operations: collectives in order, and the messages of each channel in order.
///
/// They progress during calls of this rank, and otherwise on a thread every 2 ms, so operations
/// without a waiting caller complete, too. A waiting call runs its operation itself, while Gloo
/// hands it to another thread (docs/benchmarks.md). While a call sleeps, other threads may start
/// operations and wait for them.
///
/// After the first failure all operations fail, here and, when they wait, on the other ranks.
/// Thread-safe.
class ProgressEngine : public std::enable_shared_from_this<ProgressEngine> {
 public:
  /// `group`: its id in the flight record.
  ProgressEngine(std::unique_ptr<Member> member, uint64_t group);
  /// close() must have been called.
  ~ProgressEngine();
  ProgressEngine(const ProgressEngine&) = delete;
  ProgressEngine& operator=(const ProgressEngine&) = delete;

  std::shared_ptr<Work> start(Collective collective);
  /// See Transport::next_message.
  NextMessage next_message(int from, int tag);
  /// Leaves the group. Running operations and all later ones fail.
  void close();

  int rank() const { return member_->rank(); }
  int size() const { return member_->size(); }
  uint64_t group() const { return group_; }
  const std::shared_ptr<Segment>& segment() const { return member_->shared_segment(); }
  /// Opens pidfds of the peers. Call it after all ranks have taken part in an operation.
  void watch_peers();

 private:
  friend class QueuedOperation;
  using Operation = std::shared_ptr<QueuedOperation>;
  using Queue = std::deque<Operation>;

  /// Blocks until `operation` is done. Throws CommError if it fails, a needed rank is lost, or the
  /// timeout ends.
  void wait(QueuedOperation& operation, Milliseconds timeout);
  bool done(QueuedOperation& operation);

  // With the mutex held:
  /// Spins for a while; returns whether `operation` has finished. Unlocks the mutex while it yields
  /// its core.
  bool spin(const QueuedOperation& operation, std::unique_lock<std::mutex>& lock);
  void progress();
  void progress(Queue& queue);
  bool is_idle() const;
  /// Fails all operations, `failed` with the error, and informs the other ranks.
  void fail(QueuedOperation& failed, const CommError& error);
  std::vector<Operation> take_all();
  /// Wakes the threads of this process that sleep in wait(): their operations may have finished.
  void wake_sleepers();
  std::vector<int> awaited(const QueuedOperation& operation) const;
  /// Fails `operation` if a rank that it waits for is lost.
  void check_peers(QueuedOperation& operation, double seconds);

  // The progress thread.
  void ensure_progress_thread();
  void run_progress_thread();

  std::mutex mutex_;
  std::unique_ptr<Member> member_;
  const uint64_t group_;
  const bool shares_cores_;  ///< More ranks than cores.
  Sequence sequence_;
  Queue collectives_;
  std::map<std::pair<bool, int>, Queue> messages_;  ///< By (whether it sends, peer).
  std::string failure_;
  int sleepers_ = 0;  ///< Threads of this process that sleep in wait().

  std::mutex thread_mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
  /// The thread waits for a notification, or does not exist.
  std::atomic<bool> thread_idle_{true};
  std::thread thread_;
};

}  // namespace lockstep::comm::shm
