// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/flat/grad_bucket.h"
#include "lockstep/sync/backward_hooks.h"
#include "lockstep/sync/comm_hook/comm_hook.h"
#include "lockstep/sync/data_parallel.h"

namespace lockstep {

class JoinCoordinator;

/// Returns the trained parameters: each once, even with two names, without frozen and empty ones.
NamedTensors trainable(const NamedTensors& parameters);

/// The state of DataParallel between the first gradient of a backward and the last average: arrived
/// parameters, full buckets, running operations. In a group of one it has no buckets and no hooks.
class Reducer : public std::enable_shared_from_this<Reducer> {
 public:
  /// `buffers`: those that are broadcast from rank 0.
  Reducer(
      const NamedTensors& parameters,
      std::vector<at::Tensor> buffers,
      Group group,
      const DataParallelOptions& options,
      const flat::CommDtypes& narrow);

  /// Installs hooks on the parameters. Not in the constructor because hooks refer to this weakly.
  void watch();

  void begin();
  void finish();
  void abandon() noexcept;
  /// Averages as a backward that reaches nothing. `keep`: averaged gradients are added to instead
  /// of zeroed.
  void average_without_data(bool keep);

  void set_sync(bool sync) { sync_ = sync; }
  void set_local(bool local) { local_ = local; }

  /// Announces every later averaging as one of `model`; nullptr: no more. `defer`: buckets wait for
  /// the end of backward.
  void set_join_coordinator(
      std::shared_ptr<JoinCoordinator> join_coordinator, size_t model, bool defer);
  bool has_join_coordinator() const { return join_coordinator_ != nullptr; }

  CommHook* hook() { return hook_.get(); }
  const Group& group() const { return group_; }
  size_t bucket_count() const { return buckets_.size(); }

 private:
  struct Place {
    size_t bucket = 0;
    size_t entry = 0;
  };

  /// Whether the next backward averages.
  bool sync() const { return sync_ && !local_; }
  const at::Tensor& view(size_t parameter) const {
    return buckets_[places_[parameter].bucket].view(places_[parameter].entry);
  }
  void reset_backward();
  bool adopt_gradient(size_t index);
  void gradient_arrived(size_t index);
  void start(size_t bucket);
  void announce();
  /// Whether a parameter's gradient is the last average, or that average changed in place.
  bool holds_average(size_t index) const;
  /// Whether gradients still hold averages, as far as known: zeroed ones, or ones that others wrote
  /// to, do not count.
  bool adds_to_average() const;
  void finish_locked();
  void take_average(const flat::GradBucket& bucket);
  void drop_untouched();

  Group group_;
  NamedTensors parameters_;
  NamedTensors untrained_;  ///< Frozen at construction.
  std::vector<at::Tensor> buffers_;
  std::vector<flat::GradBucket> buckets_;
  std::vector<Place> places_;  ///< [parameter]
  std::unordered_map<at::TensorImpl*, size_t> index_of_;
  std::unique_ptr<CommHook> hook_;
  std::unique_ptr<BackwardHooks> hooks_;

  std::mutex mutex_;  // CUDA gradients arrive on autograd's own threads.
  bool sync_ = true;
  bool local_ = false;              ///< Regardless of `sync_`.
  bool expected_ = false;           ///< An averaging backward was announced and is not finished.
  bool in_backward_ = false;        ///< An averaging backward has begun and is not finished.
  int backward_id_ = -1;            ///< Its number in autograd.
  int local_id_ = -1;               ///< The last backward that only accumulated.
  std::vector<bool> has_gradient_;  ///< [parameter] on this rank, since it was last zeroed
  std::vector<bool> averaged_;      ///< [parameter] its gradient holds an average, not zeroed since
  std::vector<int64_t> versions_;   ///< [parameter] of that gradient, if only autograd added to it
  std::vector<bool> arrived_;       ///< [parameter] in this backward
  std::vector<size_t> missing_;     ///< [bucket] parameters that have not arrived in this backward
  size_t next_bucket_ = 0;          ///< First bucket that has not started.

  std::shared_ptr<JoinCoordinator> join_coordinator_;
  size_t model_ = 0;        ///< This model's number in the join.
  bool defer_ = false;      ///< No bucket starts before the end of backward.
  bool announced_ = false;  ///< In this backward.
};

}  // namespace lockstep
