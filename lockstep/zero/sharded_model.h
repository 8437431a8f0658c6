// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/zero/bucket/sharded_bucket.h"
#include "lockstep/zero/coordinator/param_coordinator.h"
#include "lockstep/zero/shard_slices.h"
#include "lockstep/zero/sharding_options.h"

namespace lockstep::zero {

/// This rank's shard of one bucket, flat, with the shard slices of parameters in it.
struct Shard {
  at::Tensor values;
  std::vector<at::Tensor> shard_slices;
  std::shared_ptr<offload::FileTensor> file;  ///< The file that stores the values, if any.
  /// All parameters of the bucket, in order: the elements that each rank owns.
  std::vector<flat::ShardBounds> bounds;
};

/// Returns the parameters that stage 3 does not shard, trained or not. Each has at most `up_to`
/// elements; in order, they have up to `in_all` elements together. Modelled on DeepSpeed 0.19's
/// mark_persistent_parameters. Thread-safe.
std::set<const at::TensorImpl*> persistent_parameters(
    const NamedTensors& all, int64_t up_to, int64_t in_all);

/// Creates the sharded buckets of a model, and finds the parameters in them.
///
/// Buckets hold parameters of one optimizer group, in reverse order of registration. In stage 3
/// frozen parameters have buckets, too. Not thread-safe; lookups are.
class ShardedModel {
 public:
  /// See Sharding's constructor. Collective.
  ShardedModel(
      const NamedTensors& parameters,
      const NamedTensors& buffers,
      const std::vector<std::vector<at::Tensor>>& groups,
      Group group,
      const ShardingOptions& options);

  /// All trained parameters, in the order of groups.
  const NamedTensors& parameters() const { return parameters_; }
  /// The buckets of trained parameters.
  const std::vector<std::unique_ptr<ShardedBucket>>& buckets() const { return buckets_; }
  /// [bucket][entry] Index of the parameter.
  const std::vector<std::vector<size_t>>& members() const { return members_; }
  /// The shards of each optimizer group.
  const std::vector<std::vector<Shard>>& shards() const { return shards_; }
  /// Returns whether only the ranks of the subgroup have a parameter, by its index.
  bool is_in_subgroup(size_t parameter) const {
    return in_subgroup_.contains(parameters_[parameter].tensor.unsafeGetTensorImpl());
  }
  /// The ranks that have the parameters of ShardingOptions::subgroup.
  const Group& subgroup() const { return subgroup_; }
  /// Returns the group of a bucket's shard, and its index there.
  std::pair<size_t, size_t> shard_of(size_t bucket) const { return shard_of_[bucket]; }
  const ShardSlices& slices() const { return slices_; }
  /// Unshards parameters in stage 3; null in other stages.
  ParamCoordinator* coordinator() { return coordinator_.get(); }

  /// Adds a unit of a tensor that is not part of the model.
  void manage(std::unique_ptr<ShardedUnit> unit, std::string name);
  /// See Sharding::check_not_moved.
  void check_not_moved() const;
  void check_alive() const;
  bool has_masters() const;
  /// Adds the memory of all buckets; see ShardedBucket::add_memory.
  void add_memory(
      std::vector<at::Tensor>& parameters,
      std::vector<at::Tensor>& masters,
      std::vector<at::Tensor>& gradients) const;

 private:
  using ParameterSet = std::set<const at::TensorImpl*>;

  /// Creates the groups, the storage and the coordinator. `persistent`: not sharded in stage 3.
  void prepare(
      const NamedTensors& parameters,
      const ParameterSet& persistent,
      const ShardingOptions& options);
  /// Creates `places` with space for this rank's part of `parameters`, which `ranks` share. If it
  /// fails on one rank, all ranks throw. Collective if `options` name a disk.
  void reserve(
      std::optional<ShardPlaces>& places,
      const OffloadParam& options,
      const LowPrecisionPolicy& low_precision_policy,
      const NamedTensors& parameters,
      int ranks,
      bool keep_rounded_on_device);
  /// Returns how `items` are sent, which are all in the subgroup or none.
  BucketComm comm_of(const NamedTensors& items, ParamPlacement placement) const;
  /// Creates buckets of `items`, which belong to the last group of `shards_`.
  void add_trained(
      const NamedTensors& items, const ShardingOptions& options, ParamPlacement placement);
  void add_frozen(const NamedTensors& frozen, const ShardingOptions& options);
  void add_shard(ShardedBucket& bucket);

  bool has(const ParameterSet& set, const NamedTensor& item) const {
    return set.contains(item.tensor.unsafeGetTensorImpl());
  }

  Group group_;
  Group subgroup_;
  ParameterSet in_subgroup_;
  NamedTensors untrained_;  ///< Frozen at construction.
  NamedTensors parameters_;
  std::vector<std::unique_ptr<ShardedBucket>> buckets_;
  std::vector<std::unique_ptr<ShardedBucket>> frozen_;
  std::vector<std::unique_ptr<ShardedUnit>> managed_;
  std::optional<ShardPlaces> shard_places_;     ///< If sharded.
  std::optional<ShardPlaces> master_places_;    ///< If masters are stored there.
  std::optional<ShardPlaces> subgroup_places_;  ///< The same of the subgroup.
  BucketComm comm_;                             ///< Of sharded, trained parameters.
  std::unique_ptr<ParamCoordinator> coordinator_;
  std::vector<std::vector<size_t>> members_;
  std::vector<std::vector<Shard>> shards_;
  std::vector<std::pair<size_t, size_t>> shard_of_;  ///< [bucket]
  ShardSlices slices_;
};

}  // namespace lockstep::zero
