// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/thread/thread_transport.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text/words.h"
#include "lockstep/comm/tensor/sharded_param.h"
#include "lockstep/comm/thread/reference_collectives.h"
#include "lockstep/comm/transport/exchange.h"
#include "lockstep/comm/transport/rank_number.h"
#include "lockstep/comm/transport/transport_error.h"

namespace lockstep::comm {
namespace {

/// Holds a collective for which not all ranks have arrived. Protected by the hub's mutex.
struct PendingCollective {
  explicit PendingCollective(int size) : by_rank(size), fingerprints(size), present(size, false) {}
  std::vector<Collective> by_rank;
  std::vector<Fingerprint> fingerprints;
  std::vector<bool> present;
  int arrived = 0;
  bool done = false;
  bool is_denied = false;  ///< Rank 0 has asked alone, and has started nothing since.
};

/// RAII scope: makes the result of an operation independent of the modes of the thread that
/// executes it: autocast, zero_init, or a gradient mode. Inference mode may write to all tensors,
/// and does not change their kind.
class NeutralModes {
 public:
  NeutralModes()
      : without_(c10::autocast_dispatch_keyset | c10::DispatchKeySet(kShardedParamKey)),
        inference_(true) {}

 private:
  c10::impl::ExcludeDispatchKeyGuard without_;
  c10::InferenceMode inference_;
};

/// Holds a message between two threads; both ends share it.
struct PendingMessage {
  Collective sent;
  Fingerprint fingerprint;
  std::atomic<bool> taken{false};
  std::string refusal;  // Protected by the hub's mutex.
};

double seconds_of(Milliseconds time) {
  return std::chrono::duration<double>(time).count();
}

std::string late_text(const std::vector<int>& ranks, Milliseconds timeout) {
  return fmt::format(
      "{} did not call the operation within {:.1f} s", ranks_text(ranks), seconds_of(timeout));
}

}  // namespace

class ThreadHub {
 public:
  explicit ThreadHub(int size)
      : size_(size), present_(size, false), choices_(size), numbers_(size) {}

  int size() const { return size_; }
  /// The number that a rank has set; 0: not yet.
  std::atomic<uint64_t>& number(int rank) { return numbers_[rank]; }

  /// Never waits: the last rank to arrive executes the operation for all.
  std::shared_ptr<PendingCollective> join(
      int rank, Collective mine, const Fingerprint& fingerprint) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_.empty()) {
      throw error_after(failure_, name_of(mine.op));
    }
    auto& entry = collectives_[fingerprint.sequence];
    if (!entry) {
      entry = std::make_shared<PendingCollective>(size_);
    }
    const std::shared_ptr<PendingCollective> pending = entry;
    const char* name = name_of(mine.op);
    pending->is_denied = pending->is_denied && rank != 0;
    pending->by_rank[rank] = std::move(mine);
    pending->fingerprints[rank] = fingerprint;
    pending->present[rank] = true;
    if (++pending->arrived == size_) {
      if (asks_alone(pending->fingerprints)) {
        deny_to_rank_0(*pending);
        return pending;
      }
      collectives_.erase(fingerprint.sequence);
      if (const auto sides = mismatch(pending->fingerprints)) {
        failure_ = *sides;
      } else if (attempt(name, [&] { perform_collective(pending->by_rank); })) {
        pending->done = true;
      }
      changed_.notify_all();
    }
    return pending;
  }

  bool is_over(const PendingCollective& pending, int rank) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return is_done(pending, rank) || !failure_.empty();
  }

  void await(const PendingCollective& pending, int rank, const char* name, Milliseconds timeout) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto over = [&] { return is_done(pending, rank) || !failure_.empty(); };
    if (!changed_.wait_for(lock, timeout, over)) {
      fail_without(pending.present, timeout);
    }
    if (!is_done(pending, rank)) {
      throw CommError(name, failure_);
    }
  }

  at::Tensor share(int rank, int64_t bytes, Milliseconds timeout) {
    barrier(rank, "shared_zeros", timeout, [&] { common_ = at::zeros({bytes}, at::kByte); });
    // As with processes, each rank has a separate storage over the same memory.
    at::Tensor mine = at::from_blob(
        common_.mutable_data_ptr(), {bytes}, [keep = common_](void*) {}, at::kByte);
    barrier(rank, "shared_zeros", timeout, [&] { common_.reset(); });
    return mine;
  }

  std::shared_ptr<ThreadHub> split(
      int rank, int color, int key, int& new_rank, Milliseconds timeout) {
    choices_[rank] = {color, key};
    barrier(rank, "split", timeout, [&] {
      parts_.clear();
      for (const SplitChoice& choice : choices_) {
        const auto members = static_cast<int>(members_of(choices_, choice.color).size());
        parts_.emplace(choice.color, std::make_shared<ThreadHub>(members));
      }
      std::lock_guard<std::mutex> lock(children_mutex_);
      for (const auto& [unused, part] : parts_) {
        children_.push_back(part);
      }
    });
    new_rank = index_in(members_of(choices_, color), rank);
    auto part = parts_.at(color);
    // No rank may start the next split before all ranks have read this one.
    barrier(rank, "split", timeout, [] {});
    return part;
  }

  std::shared_ptr<PendingMessage> post(
      int from, int to, Collective sent, const Fingerprint& fingerprint) {
    auto message = std::make_shared<PendingMessage>();
    message->sent = std::move(sent);
    message->fingerprint = fingerprint;
    const std::lock_guard<std::mutex> lock(mutex_);
    mail_[{from, to}].push_back(message);
    changed_.notify_all();
    return message;
  }

  void await_taken(const std::shared_ptr<PendingMessage>& message, int to, Milliseconds timeout) {
    std::unique_lock<std::mutex> lock(mutex_);
    await(lock, "send", to, timeout, [&] { return message->taken.load(); });
    if (!message->refusal.empty()) {
      throw CommError("send", message->refusal, to);
    }
  }

  NextMessage next_message(int from, int to, int tag) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_.empty()) {
      throw error_after(failure_, "recv");
    }
    const auto& queue = mail_[{from, to}];
    return !queue.empty() && queue.front()->fingerprint.root == tag ? NextMessage::kArrives
                                                                    : NextMessage::kNone;
  }

  void take(
      int from,
      int to,
      const Collective& into,
      const Fingerprint& fingerprint,
      Milliseconds timeout) {
    std::unique_lock<std::mutex> lock(mutex_);
    auto& queue = mail_[{from, to}];
    await(lock, "recv", from, timeout, [&] { return !queue.empty(); });
    const auto message = queue.front();
    queue.pop_front();
    message->taken = true;
    if (const auto sides = mismatch(message->fingerprint, from, fingerprint, to)) {
      message->refusal = *sides;
    } else {
      at::Tensor output = into.output;
      if (!attempt("recv", [&] { output.copy_(message->sent.input); })) {
        message->refusal = failure_;
      }
    }
    changed_.notify_all();
    if (!message->refusal.empty()) {
      throw CommError("recv", message->refusal, from);
    }
  }

  void abort(const std::string& why) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (failure_.empty()) {
        failure_ = why;
      }
      changed_.notify_all();
    }
    const std::lock_guard<std::mutex> lock(children_mutex_);
    for (const auto& weak : children_) {
      if (const auto child = weak.lock()) {
        child->abort(why);
      }
    }
  }

 private:
  static bool is_done(const PendingCollective& pending, int rank) {
    return pending.done || (rank == 0 && pending.is_denied);
  }

  /// Answers the question of rank 0, whose place in the others' operation is free again.
  void deny_to_rank_0(PendingCollective& pending) {
    deny(pending.by_rank[0]);
    pending.is_denied = true;
    pending.by_rank[0] = {};
    pending.present[0] = false;
    --pending.arrived;
    changed_.notify_all();
  }

  /// Runs `act` for all ranks, which wait for it. If it throws, the group fails for this reason.
  template <typename Act>
  bool attempt(const char* name, const Act& act) {
    const NeutralModes modes;
    try {
      act();
      return true;
    } catch (const std::exception& error) {
      failure_ = fmt::format("{} failed: {}", name, first_line(error.what()));
      return false;
    }
  }

  /// Fails the group because the ranks that are not `present` are late.
  void fail_without(const std::vector<bool>& present, Milliseconds timeout) {
    std::vector<int> missing;
    for (int rank = 0; rank < size_; ++rank) {
      if (!present[rank]) {
        missing.push_back(rank);
      }
    }
    failure_ = late_text(missing, timeout);
    changed_.notify_all();
  }

  /// Blocks until all ranks have arrived. The last rank to arrive runs `act` while the others wait.
  template <typename Act>
  void barrier(int rank, const char* name, Milliseconds timeout, const Act& act) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!failure_.empty()) {
      throw error_after(failure_, name);
    }
    const int64_t round = round_;
    present_[rank] = true;
    if (++arrived_ == size_) {
      if (attempt(name, act)) {
        arrived_ = 0;
        present_.assign(size_, false);
        ++round_;
      }
      changed_.notify_all();
    } else {
      const auto over = [&] { return round_ != round || !failure_.empty(); };
      if (!changed_.wait_for(lock, timeout, over)) {
        fail_without(present_, timeout);
      }
    }
    if (!failure_.empty()) {
      throw CommError(name, failure_);
    }
  }

  template <typename Ready>
  void await(
      std::unique_lock<std::mutex>& lock,
      const char* name,
      int peer,
      Milliseconds timeout,
      const Ready& ready) {
    const bool in_time =
        changed_.wait_for(lock, timeout, [&] { return ready() || !failure_.empty(); });
    if (in_time && ready()) {
      return;
    }
    if (failure_.empty()) {
      failure_ = late_text({peer}, timeout);
    }
    changed_.notify_all();
    throw CommError(name, failure_, peer, seconds_of(timeout));
  }

  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int64_t, std::shared_ptr<PendingCollective>> collectives_;  ///< By sequence number.
  std::vector<bool> present_;
  std::vector<SplitChoice> choices_;
  std::vector<std::atomic<uint64_t>> numbers_;  ///< Set by the ranks.
  at::Tensor common_;
  std::map<int64_t, std::shared_ptr<ThreadHub>> parts_;
  std::mutex children_mutex_;
  std::vector<std::weak_ptr<ThreadHub>> children_;
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<PendingMessage>>> mail_;
  int arrived_ = 0;
  int64_t round_ = 0;
  std::string failure_;
};

namespace {

class CollectiveWork final : public Work {
 public:
  CollectiveWork(
      std::shared_ptr<ThreadHub> hub,
      std::shared_ptr<PendingCollective> pending,
      int rank,
      const char* name)
      : hub_(std::move(hub)), pending_(std::move(pending)), rank_(rank), name_(name) {}
  bool done() const override { return hub_->is_over(*pending_, rank_); }
  void wait(Milliseconds timeout) override { hub_->await(*pending_, rank_, name_, timeout); }

 private:
  std::shared_ptr<ThreadHub> hub_;
  std::shared_ptr<PendingCollective> pending_;
  int rank_;
  const char* name_;
};

/// Sends a message. Both ends block only in wait(), so two ranks may send to each other before they
/// receive.
class SendWork final : public Work {
 public:
  SendWork(std::shared_ptr<ThreadHub> hub, std::shared_ptr<PendingMessage> message, int to)
      : hub_(std::move(hub)), message_(std::move(message)), to_(to) {}
  bool done() const override { return message_->taken; }
  void wait(Milliseconds timeout) override { hub_->await_taken(message_, to_, timeout); }

 private:
  std::shared_ptr<ThreadHub> hub_;
  std::shared_ptr<PendingMessage> message_;
  int to_;
};

class RecvWork final : public Work {
 public:
  RecvWork(
      std::shared_ptr<ThreadHub> hub,
      int from,
      int to,
      Collective into,
      const Fingerprint& fingerprint)
      : hub_(std::move(hub)),
        from_(from),
        to_(to),
        into_(std::move(into)),
        fingerprint_(fingerprint) {}
  bool done() const override { return done_; }
  void wait(Milliseconds timeout) override {
    if (!done_) {
      hub_->take(from_, to_, into_, fingerprint_, timeout);
      done_ = true;
    }
  }

 private:
  std::shared_ptr<ThreadHub> hub_;
  int from_, to_;
  Collective into_;
  Fingerprint fingerprint_;
  bool done_ = false;
};

/// Ends the observation of an operation when its result is awaited.
class ObservedWork final : public Work {
 public:
  ObservedWork(std::shared_ptr<Work> work, std::shared_ptr<OperationObserver> observer)
      : work_(std::move(work)), observer_(std::move(observer)) {}
  bool done() const override { return work_->done(); }
  void wait(Milliseconds timeout) override {
    try {
      work_->wait(timeout);
    } catch (...) {
      end(false);
      throw;
    }
    end(true);
  }

 private:
  void end(bool succeeded) {
    if (observer_) {
      std::exchange(observer_, nullptr)->end(succeeded, std::nullopt);
    }
  }

  std::shared_ptr<Work> work_;
  std::shared_ptr<OperationObserver> observer_;
};

class ThreadTransport final : public Transport {
 public:
  ThreadTransport(std::shared_ptr<ThreadHub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}

  const char* name() const override { return "thread"; }
  int rank() const override { return rank_; }
  int size() const override { return hub_->size(); }

  at::Tensor allocate_shared(int64_t bytes, Milliseconds timeout) override {
    compare(timeout);
    return hub_->share(rank_, bytes, timeout);
  }

  std::shared_ptr<Work> start(Collective collective, Milliseconds /*timeout*/) override {
    std::shared_ptr<OperationObserver> observer = std::move(collective.observer);
    if (!observer) {
      return start_unobserved(std::move(collective));
    }
    observer->begin();
    return std::make_shared<ObservedWork>(
        start_unobserved(std::move(collective)), std::move(observer));
  }

  void set_number(uint64_t number) override { hub_->number(rank_).store(number); }

  uint64_t number_of(int rank, Milliseconds timeout) override {
    return await_number(rank, timeout, [&] { return hub_->number(rank).load(); });
  }

  NextMessage next_message(int from, int tag) override {
    return hub_->next_message(from, rank_, tag);
  }

  std::shared_ptr<Transport> split(int color, int key, Milliseconds timeout) override {
    compare(timeout);
    int new_rank = 0;
    auto part = hub_->split(rank_, color, key, new_rank, timeout);
    return std::make_shared<ThreadTransport>(std::move(part), new_rank);
  }

  void abort(const std::string& why) { hub_->abort(why); }

 private:
  /// Finds ranks that call another operation, as processes do.
  void compare(Milliseconds timeout) { start_unobserved({.op = Op::kBarrier})->wait(timeout); }

  std::shared_ptr<Work> start_unobserved(Collective collective) {
    const int peer = collective.root;
    if (collective.op == Op::kSend) {
      const Fingerprint fingerprint = fingerprint_of(collective, 0);
      return std::make_shared<SendWork>(
          hub_, hub_->post(rank_, peer, std::move(collective), fingerprint), peer);
    }
    if (collective.op == Op::kRecv) {
      const Fingerprint fingerprint = fingerprint_of(collective, 0);
      return std::make_shared<RecvWork>(hub_, peer, rank_, std::move(collective), fingerprint);
    }
    const Fingerprint fingerprint = fingerprint_of(collective, sequence_.next(collective));
    const char* name = name_of(collective.op);
    return std::make_shared<CollectiveWork>(
        hub_, hub_->join(rank_, std::move(collective), fingerprint), rank_, name);
  }

  std::shared_ptr<ThreadHub> hub_;
  int rank_;
  Sequence sequence_;
};

}  // namespace

std::vector<std::shared_ptr<Transport>> make_thread_transports(int size) {
  if (size < 1) {
    throw ConfigError(
        "thread group",
        fmt::format("size is out of range; got {}, expected at least 1 rank", size));
  }
  const auto hub = std::make_shared<ThreadHub>(size);
  std::vector<std::shared_ptr<Transport>> transports;
  for (int rank = 0; rank < size; ++rank) {
    transports.push_back(std::make_shared<ThreadTransport>(hub, rank));
  }
  return transports;
}

void abort_thread_group(Transport& transport, const std::string& why) {
  dynamic_cast<ThreadTransport&>(transport).abort(why);
}

}  // namespace lockstep::comm
