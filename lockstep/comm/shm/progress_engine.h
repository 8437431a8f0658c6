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
#include "lockstep/comm/transport.h"

namespace lockstep::comm::shm {

class QueuedOperation;

/// A rank's operations: collectives one after the other, messages of each channel one after the
/// other. They go on whenever this rank calls in here, and meanwhile, slowly, by a thread that
/// looks in every 2 ms: so an operation that nobody waits for gets done too. No thread hands
/// anything to another on the way of a call that waits, which is what makes Gloo slow
/// (shared/reference/performance.md, 1).
///
/// After the first failure all operations fail, here and, as soon as they wait, on the other ranks.
/// Thread-safe.
class ProgressEngine : public std::enable_shared_from_this<ProgressEngine> {
 public:
  /// `group`: in the flight record.
  ProgressEngine(std::unique_ptr<Member> member, uint64_t group);
  /// close() must have been called.
  ~ProgressEngine();
  ProgressEngine(const ProgressEngine&) = delete;
  ProgressEngine& operator=(const ProgressEngine&) = delete;

  std::shared_ptr<Work> start(Collective collective);
  /// Leaves the group. What is under way fails; nothing is begun from now on.
  void close();

  int rank() const { return member_->rank(); }
  int size() const { return member_->size(); }
  uint64_t group() const { return group_; }
  const std::shared_ptr<Segment>& segment() const { return member_->shared_segment(); }
  /// Call once all ranks have taken part in an operation.
  void watch_peers();

 private:
  friend class QueuedOperation;
  using Operation = std::shared_ptr<QueuedOperation>;
  using Queue = std::deque<Operation>;

  /// Returns when `operation` is done; CommError when it fails, a rank it needs is lost, or time is
  /// up.
  void wait(QueuedOperation& operation, Milliseconds timeout);
  bool done(QueuedOperation& operation);

  // With the mutex held:
  /// Looks again and again, for a while; whether `operation` is finished then.
  bool spin(const QueuedOperation& operation);
  void progress();
  void progress(Queue& queue);
  bool is_idle() const;
  /// Ends all operations, `culprit` with the error, and tells the other ranks.
  void fail(QueuedOperation& culprit, const CommError& error);
  std::vector<Operation> take_all();
  std::vector<int> awaited(const QueuedOperation& operation) const;
  /// Fails `operation` if a rank that it waits for will not come.
  void check_peers(QueuedOperation& operation, double seconds);

  // The thread that looks in.
  void ensure_looked_after();
  void look_in();

  std::mutex mutex_;
  std::unique_ptr<Member> member_;
  const uint64_t group_;
  const bool shares_cores_;  ///< There are more ranks than cores.
  int64_t sequence_ = 0;
  Queue collectives_;
  std::map<std::pair<bool, int>, Queue> messages_;  ///< By (whether it sends, peer).
  std::string dead_;

  std::mutex thread_mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
  std::atomic<bool> resting_{true};  ///< The thread waits to be woken, or there is none yet.
  std::thread thread_;
};

}  // namespace lockstep::comm::shm
