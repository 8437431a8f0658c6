// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/sync/backward_hooks.h"

namespace lockstep {

/// The operations of a GradientReduction that differ between data parallel and ZeRO.
/// GradientReduction calls all but `parameter_name` with gradient mode off and under its lock.
class GradientBuckets {
 public:
  GradientBuckets() = default;
  virtual ~GradientBuckets() = default;
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  /// Returns the name of a parameter, for messages.
  virtual const std::string& parameter_name(size_t parameter) const = 0;
  /// Returns whether `before_gradient` must be called.
  virtual bool wants_before_gradient() const { return false; }
  /// Called before autograd accumulates a gradient of a parameter.
  virtual void before_gradient(size_t /*parameter*/) {}
  /// Stores a gradient that autograd has accumulated. `averages`: whether the backward averages.
  /// Returns true if this call is an error when it is the parameter's second and its bucket has
  /// started.
  virtual bool on_gradient(size_t parameter, bool averages) = 0;
  /// Called when an averaging backward reaches its first parameter; throws to refuse it.
  virtual void begin_backward() {}
  /// Called once in each averaging backward, before the first bucket starts.
  virtual void begin_reduction() = 0;
  /// Starts the reduction of a bucket; called in index order. Missing gradients count as zero.
  virtual void start_bucket(size_t bucket) = 0;
  /// Waits for all buckets, and stores the averages. Throws CommError.
  virtual void finish_buckets() = 0;
  /// Drops started reductions; with `wait`, after none is running any more.
  virtual void abandon_buckets(bool wait) = 0;
  /// Called at the end of a non-averaging backward for which begin() was called.
  virtual void finish_local_backward() = 0;
};

/// The state of gradient reduction from the first gradient of a backward to the last average.
///
/// A bucket starts when all its gradients have arrived and all buckets before it have started. So
/// buckets start in index order on every rank, regardless of the order of gradients. The end of
/// backward starts the rest. A backward without averaging starts no bucket.
///
/// Cost: a lock and a virtual call for each gradient, no allocation. Thread safety: gradients may
/// arrive on several threads; one backward at a time. Used by Reducer and zero::ShardReducer.
class GradientReduction {
 public:
  /// The treatment of a backward that begins before the previous averaging one has ended.
  enum class Overlap {
    kRefused,  ///< Its first gradient throws Error.
    kAllowed   ///< Its gradients belong to the previous one (reentrant backward).
  };
  /// `where` is the prefix of messages. `buckets` must outlive this.
  GradientReduction(const char* where, Overlap overlap, GradientBuckets& buckets)
      : where_(where), overlap_(overlap), buckets_(buckets) {}

  /// Sets the number of parameters and the parameters of each bucket. Call it before any backward.
  void set_layout(size_t parameter_count, const std::vector<std::vector<size_t>>& members);
  /// Installs hooks on the parameters. Hooks refer to `self`, a pointer to this, weakly.
  void watch(
      const std::vector<at::Tensor>& parameters, const std::shared_ptr<GradientReduction>& self);

  /// Call it before a backward. With set_sync(true) that backward averages; if `has_work` is false,
  /// only if it reaches a parameter.
  void begin(bool has_work = true);
  /// Records the arrival of a gradient in autograd's backward number `backward`. Throws ConfigError
  /// for a second gradient of a parameter whose bucket has started.
  void gradient_arrived(size_t parameter, int backward);
  /// Ends the backward: starts the remaining buckets and waits for all. Does nothing if autograd
  /// has called it at the end of backward.
  void finish();
  /// Averages without a backward: missing gradients count as zero.
  void reduce_without_backward();
  /// Drops a backward that threw, after no operation is running any more.
  void abandon() noexcept;

  /// While false, backward only accumulates.
  void set_sync(bool sync) { sync_ = sync; }
  bool sync() const { return sync_; }
  /// While true, no bucket starts before the end of backward.
  void set_deferred(bool deferred) { deferred_ = deferred; }
  /// The number of ended backward passes that started a bucket, successful or not.
  int64_t reductions() const { return reductions_; }
  /// Locks out gradients that arrive on other threads.
  [[nodiscard]] std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }

 private:
  void reset();
  void begin_reduction();
  void start_next();
  void finish_locked();

  const char* where_;
  Overlap overlap_;
  GradientBuckets& buckets_;
  std::vector<size_t> bucket_of_;  ///< [parameter]
  std::vector<size_t> sizes_;      ///< [bucket] Number of parameters.
  std::weak_ptr<GradientReduction> self_;
  std::unique_ptr<BackwardHooks> hooks_;

  std::mutex mutex_;  // CUDA gradients arrive on autograd's own threads.
  bool sync_ = true;
  bool deferred_ = false;
  int64_t reductions_ = 0;

  /// The current backward.
  struct Backward {
    bool begun = false;                  ///< `begin` was called.
    bool must_average = false;           ///< It was begun, and averages.
    bool has_gradient = false;           ///< It averages, and has reached a parameter.
    bool has_started_reduction = false;  ///< `begin_reduction` was called.
    int id = -1;                         ///< Its number in autograd.
    size_t next_bucket = 0;
  };
  Backward backward_;
  std::vector<bool> arrived_;    ///< [parameter]
  std::vector<size_t> missing_;  ///< [bucket] Parameters that have not arrived.
};

}  // namespace lockstep
