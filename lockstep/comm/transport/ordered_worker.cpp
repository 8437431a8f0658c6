// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/transport/ordered_worker.h"

#include <exception>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/rank.h"

namespace lockstep::comm {
namespace {

class QueuedWork final : public Work {
 public:
  QueuedWork(const char* name, OrderedWorker::Job job, OrderedWorker::OnTimeout on_timeout)
      : name_(name), job_(std::move(job)), on_timeout_(std::move(on_timeout)) {}

  bool done() const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return done_;
  }

  void wait(Milliseconds timeout) override {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!finished_.wait_for(lock, timeout, [&] { return done_; })) {
      const double seconds = static_cast<double>(timeout.count()) / 1000;
      const std::string why = fmt::format(
          "not done after {:.1f} s; a rank is lost, slow, or calls another operation", seconds);
      if (on_timeout_) {
        on_timeout_(fmt::format("{} {}", name_, why));
      }
      throw CommError(name_, why, -1, seconds);
    }
    if (error_) {
      std::rethrow_exception(error_);
    }
  }

  std::exception_ptr run() {
    try {
      job_();
      return nullptr;
    } catch (...) {
      return std::current_exception();
    }
  }

  void finish(std::exception_ptr error) {
    job_ = nullptr;  // Frees its tensors before a caller sees the operation as done.
    const std::lock_guard<std::mutex> lock(mutex_);
    error_ = std::move(error);
    done_ = true;
    finished_.notify_all();
  }

  const char* name() const { return name_; }

 private:
  const char* name_;
  OrderedWorker::Job job_;
  OrderedWorker::OnTimeout on_timeout_;
  mutable std::mutex mutex_;
  std::condition_variable finished_;
  bool done_ = false;
  std::exception_ptr error_;
};

}  // namespace

struct OrderedWorker::Queue {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<QueuedWork>> jobs;
  bool busy = false;
  bool closed = false;
  RankLabel label;
};

OrderedWorker::OrderedWorker() : queue_(std::make_shared<Queue>()) {}

OrderedWorker::~OrderedWorker() {
  std::deque<std::shared_ptr<QueuedWork>> dropped;
  bool busy = false;
  {
    const std::lock_guard<std::mutex> lock(queue_->mutex);
    queue_->closed = true;
    busy = queue_->busy;
    dropped.swap(queue_->jobs);
    queue_->changed.notify_all();
  }
  for (const auto& job : dropped) {
    job->finish(std::make_exception_ptr(
        CommError(job->name(), "the group was destroyed before the operation started")));
  }
  if (!thread_.joinable()) {
    return;
  }
  if (busy) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

std::shared_ptr<Work> OrderedWorker::submit(const char* name, Job job, OnTimeout on_timeout) {
  auto work = std::make_shared<QueuedWork>(name, std::move(job), std::move(on_timeout));
  const std::lock_guard<std::mutex> lock(queue_->mutex);
  queue_->jobs.push_back(work);
  queue_->changed.notify_all();
  if (!thread_.joinable()) {
    queue_->label = current_rank();
    thread_ = std::thread([queue = queue_] { run(queue); });
  }
  return work;
}

bool OrderedWorker::idle() const {
  const std::lock_guard<std::mutex> lock(queue_->mutex);
  return queue_->jobs.empty() && !queue_->busy;
}

void OrderedWorker::run(const std::shared_ptr<Queue>& queue) {
  const SigpipeBlocked no_sigpipe;
  const ThreadRankScope label(queue->label);
  std::unique_lock<std::mutex> lock(queue->mutex);
  while (true) {
    queue->changed.wait(lock, [&] { return queue->closed || !queue->jobs.empty(); });
    if (queue->closed) {
      return;
    }
    const auto work = std::move(queue->jobs.front());
    queue->jobs.pop_front();
    queue->busy = true;
    lock.unlock();
    const std::exception_ptr error = work->run();
    lock.lock();
    queue->busy = false;  // Before a waiter wakes: it may destroy the worker, which then joins.
    lock.unlock();
    work->finish(error);
    lock.lock();
  }
}

}  // namespace lockstep::comm
