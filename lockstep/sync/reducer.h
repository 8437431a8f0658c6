// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/flat/grad_bucket.h"
#include "lockstep/sync/comm_hook/comm_hook.h"
#include "lockstep/sync/data_parallel.h"
#include "lockstep/sync/gradient_reduction.h"
#include "lockstep/sync/rank_facts.h"
#include "lockstep/sync/sparse_gradients.h"

namespace lockstep {

class JoinCoordinator;

/// Averages DataParallel's gradients in buckets, like DDP's Reducer. Gradients are views into the
/// buckets; a comm hook averages each bucket. A group of one has no buckets and no hooks. Used by
/// DataParallel.
class Reducer final : public std::enable_shared_from_this<Reducer>, private GradientBuckets {
 public:
  /// `buffers`: those that are broadcast from rank 0.
  Reducer(
      const NamedTensors& parameters,
      std::vector<at::Tensor> buffers,
      Group group,
      const DataParallelOptions& options,
      const flat::CommDtypes& comm_dtypes);

  /// Installs hooks on the parameters. The constructor cannot, since hooks refer to this weakly.
  void watch();

  void begin();
  void finish() { reduction_.finish(); }
  void abandon() noexcept { reduction_.abandon(); }
  /// Averages without a backward on this rank. If `keep` is false and a gradient holds an average,
  /// all gradients are dropped first.
  void average_without_data(bool keep);

  void set_sync(bool sync);
  /// While true, backward only accumulates, whatever set_sync says.
  void set_local(bool local);

  /// Before each later averaging, sends the number `model` to `join_coordinator`; nullptr stops
  /// this. `defer`: buckets start only at the end of backward.
  void set_join_coordinator(
      std::shared_ptr<JoinCoordinator> join_coordinator, size_t model, bool defer);
  bool has_join_coordinator() const { return join_coordinator_ != nullptr; }

  void set_facts(RankFacts facts) { facts_ = std::move(facts); }
  bool has_gradients() const;

  CommHook* hook() { return hook_.get(); }
  const Group& group() const { return group_; }
  size_t bucket_count() const { return buckets_.size(); }

 private:
  struct Gradient {
    at::Tensor view;          ///< Its range of the bucket, with the parameter's shape.
    bool exists = false;      ///< This rank has one, since it was last zeroed.
    bool is_average = false;  ///< It holds an average, not zeroed since.
    bool is_sparse = false;   ///< `grad` is a sparse tensor, not the view.
    int64_t version = 0;      ///< Its version, if only autograd added to it.
  };

  const std::string& parameter_name(size_t parameter) const override {
    return parameters_[parameter].name;
  }
  bool on_gradient(size_t parameter, bool averages) override;
  void begin_backward() override;
  void begin_reduction() override;
  void start_bucket(size_t bucket) override;
  void finish_buckets() override;
  void abandon_buckets(bool wait) override;
  void finish_local_backward() override { drop_missing_gradients(); }

  bool adopt_gradient(size_t parameter);
  bool has_sparse_gradient(size_t parameter) const;
  void average_sparse_gradients();
  /// Returns whether a parameter's gradient is the last average, or that average changed in place.
  bool holds_average(size_t parameter) const;
  /// Returns whether gradients still hold averages. Gradients that were zeroed, or that other code
  /// wrote to, do not count.
  bool adds_to_average() const;
  void take_average(const flat::GradBucket& bucket);
  void drop_missing_gradients();
  uint64_t digest() const;
  std::vector<RankFact> facts() const;
  void send_flags();
  /// Returns whether any rank has a report, or a sparse gradient.
  bool compare_facts();
  void exchange_reports();

  Group group_;
  NamedTensors parameters_;
  NamedTensors frozen_;  ///< At construction.
  std::vector<at::Tensor> buffers_;
  std::vector<flat::GradBucket> buckets_;
  std::unique_ptr<CommHook> hook_;
  std::vector<Gradient> gradients_;  ///< [parameter]
  GradientReduction reduction_;

  SparseGradients sparse_{parameters_};
  RankFacts facts_;
  uint64_t digest_ = 0;                  ///< Of the running averaging.
  bool added_to_average_ = false;        ///< It adds to the gradients of the last one.
  std::optional<Pending> device_flags_;  ///< DigestFlags of parameters on a device.

  bool sync_ = true;
  bool local_ = false;       ///< Overrides `sync_`.
  int local_backward_ = -1;  ///< Autograd's number of the last backward that only accumulated.
  std::shared_ptr<JoinCoordinator> join_coordinator_;
  size_t model_ = 0;           ///< This model's number in the join.
  bool is_announced_ = false;  ///< The ranks with data have announced the averaging that follows.
};

}  // namespace lockstep
