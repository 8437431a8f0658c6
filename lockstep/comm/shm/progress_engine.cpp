// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/shm/progress_engine.h"

#include <algorithm>
#include <exception>
#include <variant>

#include <fmt/format.h>

#include "lockstep/base/host/cores.h"
#include "lockstep/base/rank.h"
#include "lockstep/base/text/words.h"
#include "lockstep/comm/shm/collective_run.h"
#include "lockstep/comm/shm/futex.h"
#include "lockstep/comm/shm/message_run.h"
#include "lockstep/comm/transport/flight.h"
#include "lockstep/comm/transport/transport_error.h"

namespace lockstep::comm::shm {
namespace {

using Clock = std::chrono::steady_clock;

// Spins of a waiting rank before it sleeps: about 40 us with a separate core. If ranks share cores,
// spinning keeps the awaited rank from running. With 4 ranks on 2 cores, small operations took
// twice as long with 100 spins as with 5 to 20.
constexpr int kSpinsAlone = 4000;
constexpr int kSpinsShared = 10;
constexpr int kYieldsShared = 500;  // Then it yields its core, which is faster than to sleep.

// A sleeping rank checks in this interval whether a peer has died.
constexpr Milliseconds kLongestSleep{100};

// A sleeping rank that wakes up later than this was itself stopped: the job was paused.
constexpr std::chrono::seconds kPause{2};

constexpr Milliseconds kProgressInterval{2};
constexpr int kIdleRoundsBeforeWait = 500;

}  // namespace

/// Holds one operation for its caller and the engine.
class QueuedOperation final : public Work, public std::enable_shared_from_this<QueuedOperation> {
 public:
  QueuedOperation(
      std::shared_ptr<ProgressEngine> progress_engine,
      Collective collective,
      uint64_t group,
      int64_t sequence)
      : progress_engine_(std::move(progress_engine)),
        collective_(std::move(collective)),
        entry_(collective_, group, sequence),
        run_(make_run(sequence)) {}

  bool done() const override {
    return finished_.load(std::memory_order_acquire) ||
           progress_engine_->done(const_cast<QueuedOperation&>(*this));
  }
  void wait(Milliseconds timeout) override {
    if (!finished_.load(std::memory_order_acquire)) {
      progress_engine_->wait(*this, timeout);
    }
    if (error_) {
      std::rethrow_exception(error_);
    }
  }

  // Called by the engine, with its mutex held:
  bool is_message() const { return std::holds_alternative<MessageRun>(run_); }
  std::pair<bool, int> channel() const { return {collective_.op == Op::kSend, collective_.root}; }
  Op op() const { return collective_.op; }
  int peer() const { return collective_.root; }
  bool finished() const { return finished_.load(std::memory_order_relaxed); }
  bool advance(Member& member) {
    if (!begun_) {
      begun_ = true;
      entry_.begin();
    }
    return std::visit([&](auto& run) { return run.advance(member); }, run_);
  }
  void finish(std::exception_ptr error) {
    entry_.end(error == nullptr);
    error_ = std::move(error);
    collective_.input = at::Tensor();
    collective_.output = at::Tensor();
    finished_.store(true, std::memory_order_release);
  }

 private:
  using Run = std::variant<CollectiveRun, MessageRun>;
  Run make_run(int64_t sequence) {
    const Fingerprint fingerprint = fingerprint_of(collective_, sequence);
    if (collective_.op == Op::kSend || collective_.op == Op::kRecv) {
      return MessageRun(*progress_engine_->member_, collective_, fingerprint);
    }
    return CollectiveRun(*progress_engine_->member_, collective_, fingerprint);
  }

  std::shared_ptr<ProgressEngine> progress_engine_;
  Collective collective_;
  FlightEntry entry_;
  Run run_;
  bool begun_ = false;
  std::exception_ptr error_;
  std::atomic<bool> finished_{false};
};

ProgressEngine::ProgressEngine(std::unique_ptr<Member> member, uint64_t group)
    : member_(std::move(member)),
      group_(group),
      shares_cores_(member_->size() > available_cores()) {}

ProgressEngine::~ProgressEngine() = default;

void ProgressEngine::watch_peers() {
  const std::lock_guard<std::mutex> lock(mutex_);
  member_->watch_peers();
}

std::shared_ptr<Work> ProgressEngine::start(Collective collective) {
  Operation operation;
  bool unfinished = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const bool message = collective.op == Op::kSend || collective.op == Op::kRecv;
    const int64_t sequence = message ? -1 : sequence_.next(collective);
    operation = std::make_shared<QueuedOperation>(
        shared_from_this(), std::move(collective), group_, sequence);
    if (!failure_.empty()) {
      operation->finish(std::make_exception_ptr(error_after(failure_, name_of(operation->op()))));
      return operation;
    }
    Queue& queue = message ? messages_[operation->channel()] : collectives_;
    queue.push_back(operation);
    progress(queue);
    unfinished = !operation->finished();
  }
  if (unfinished) {
    ensure_progress_thread();
  }
  return operation;
}

NextMessage ProgressEngine::next_message(int from, int tag) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!failure_.empty()) {
    throw error_after(failure_, name_of(Op::kRecv));
  }
  const auto receiving = messages_.find({false, from});
  if (receiving != messages_.end() && !receiving->second.empty()) {
    return NextMessage::kNone;  // That is of an operation which was started before.
  }
  const auto arrives = [&] {
    const Channel& channel = member_->channel(from, rank());
    return channel.posted.load(std::memory_order_acquire) !=
               channel.taken.load(std::memory_order_relaxed) &&
           channel.sent.root == tag;
  };
  if (arrives()) {
    return NextMessage::kArrives;
  }
  const auto lost = member_->lost({from});
  if (!lost || arrives()) {  // A rank may have sent it before it left.
    return lost ? NextMessage::kArrives : NextMessage::kNone;
  }
  if (member_->has_left(from)) {
    return NextMessage::kLost;
  }
  throw CommError(name_of(Op::kRecv), lost->why, lost->rank, 0);
}

void ProgressEngine::progress() {
  progress(collectives_);
  for (auto& [unused, queue] : messages_) {
    progress(queue);
  }
}

void ProgressEngine::progress(Queue& queue) {
  while (!queue.empty()) {
    const Operation operation = queue.front();
    try {
      if (!operation->advance(*member_)) {
        return;
      }
    } catch (const CommError& error) {
      fail(*operation, error);
      return;
    } catch (const Error& error) {  // No memory.
      fail(*operation, CommError(name_of(operation->op()), without_rank_suffix(error.what())));
      return;
    }
    operation->finish(nullptr);
    queue.pop_front();
    wake_sleepers();
  }
}

bool ProgressEngine::is_idle() const {
  return collectives_.empty() &&
         std::all_of(messages_.begin(), messages_.end(), [](const auto& entry) {
           return entry.second.empty();
         });
}

void ProgressEngine::fail(QueuedOperation& failed, const CommError& error) {
  failure_ = without_rank_suffix(error.what());
  member_->fail(failure_);
  for (const Operation& operation : take_all()) {
    operation->finish(std::make_exception_ptr(
        operation.get() == &failed ? error : error_after(failure_, name_of(operation->op()))));
  }
  wake_sleepers();
}

void ProgressEngine::wake_sleepers() {
  if (sleepers_ > 0) {
    wake(member_->segment().control(member_->rank()));
  }
}

std::vector<ProgressEngine::Operation> ProgressEngine::take_all() {
  std::vector<Operation> all(collectives_.begin(), collectives_.end());
  collectives_.clear();
  for (auto& [unused, queue] : messages_) {
    all.insert(all.end(), queue.begin(), queue.end());
    queue.clear();
  }
  return all;
}

std::vector<int> ProgressEngine::awaited(const QueuedOperation& operation) const {
  if (operation.is_message()) {
    return {operation.peer()};
  }
  return member_->missing();
}

void ProgressEngine::check_peers(QueuedOperation& operation, double seconds) {
  if (!member_->lost(awaited(operation))) {
    return;
  }
  progress();  // The lost rank may have completed its part before.
  if (operation.finished()) {
    return;
  }
  if (const auto lost = member_->lost(awaited(operation))) {
    fail(operation, CommError(name_of(operation.op()), lost->why, lost->rank, seconds));
  }
}

bool ProgressEngine::done(QueuedOperation& operation) {
  const std::lock_guard<std::mutex> lock(mutex_);
  progress();
  if (!operation.finished()) {
    check_peers(operation, 0);
  }
  return operation.finished();
}

void ProgressEngine::wait(QueuedOperation& operation, Milliseconds timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  progress();
  if (spin(operation, lock)) {
    return;
  }
  auto start = Clock::now();
  auto last_awake = start;
  Control& mine = member_->segment().control(member_->rank());
  while (!spin(operation, lock)) {
    const auto now = Clock::now();
    start += now - last_awake > kPause ? now - last_awake : Clock::duration(0);
    last_awake = now;
    const auto waited = std::chrono::duration_cast<Milliseconds>(now - start);
    const double seconds = std::chrono::duration<double>(waited).count();
    if (waited >= timeout) {
      const std::vector<int> missing = awaited(operation);
      fail(
          operation,
          CommError(
              name_of(operation.op()),
              fmt::format(
                  "{} did not call the operation within {:.1f} s",
                  ranks_text(missing),
                  std::chrono::duration<double>(timeout).count()),
              missing.empty() ? -1 : missing.front(),
              seconds));
      return;
    }
    const uint32_t wake_count = announce_sleep(mine);
    progress();
    if (!operation.finished()) {
      ++sleepers_;
      lock.unlock();
      sleep(mine, wake_count, std::clamp(timeout - waited, Milliseconds(1), kLongestSleep));
      lock.lock();
      --sleepers_;
      progress();
    }
    end_sleep(mine);
    if (!operation.finished()) {
      check_peers(operation, seconds);
    }
  }
}

bool ProgressEngine::spin(const QueuedOperation& operation, std::unique_lock<std::mutex>& lock) {
  const int spins = shares_cores_ ? kSpinsShared : kSpinsAlone;
  for (int i = 0; i < spins && !operation.finished(); ++i) {
    relax();
    progress();
  }
  for (int i = 0; shares_cores_ && i < kYieldsShared && !operation.finished(); ++i) {
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
    progress();
  }
  return operation.finished();
}

void ProgressEngine::ensure_progress_thread() {
  if (!thread_idle_.load(std::memory_order_seq_cst)) {
    return;
  }
  const std::lock_guard<std::mutex> lock(thread_mutex_);
  if (closed_) {
    return;
  }
  thread_idle_.store(false, std::memory_order_seq_cst);
  changed_.notify_all();
  if (!thread_.joinable()) {
    thread_ = std::thread([this, label = current_rank()] {
      const ThreadRankScope scope(label);
      run_progress_thread();
    });
  }
}

void ProgressEngine::run_progress_thread() {
  int idle_rounds = 0;
  std::unique_lock<std::mutex> lock(thread_mutex_);
  while (!closed_) {
    changed_.wait_for(lock, kProgressInterval, [&] { return closed_; });
    lock.unlock();
    {
      // A waiting caller holds the mutex, and makes progress itself.
      const std::unique_lock<std::mutex> progress_engine(mutex_, std::try_to_lock);
      if (progress_engine.owns_lock()) {
        idle_rounds = is_idle() ? idle_rounds + 1 : 0;
        progress();
      }
    }
    lock.lock();
    if (idle_rounds > kIdleRoundsBeforeWait) {
      thread_idle_.store(true, std::memory_order_seq_cst);
      // An operation that was started before the store is found here; a later one notifies.
      lock.unlock();
      bool idle = false;
      {
        const std::lock_guard<std::mutex> progress_engine(mutex_);
        idle = is_idle();
      }
      lock.lock();
      if (idle) {
        changed_.wait(
            lock, [&] { return closed_ || !thread_idle_.load(std::memory_order_seq_cst); });
      }
      thread_idle_.store(false, std::memory_order_seq_cst);
      idle_rounds = 0;
    }
  }
}

void ProgressEngine::close() {
  {
    const std::lock_guard<std::mutex> lock(thread_mutex_);
    closed_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) {
    thread_.join();
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  member_->leave();
  failure_ = failure_.empty() ? "the group was destroyed" : failure_;
  for (const Operation& operation : take_all()) {
    operation->finish(std::make_exception_ptr(CommError(
        name_of(operation->op()), "the group was destroyed before the operation was done")));
  }
  wake_sleepers();
}

}  // namespace lockstep::comm::shm
