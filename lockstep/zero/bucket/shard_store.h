// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group.h"
#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/offload/file_tensor.h"
#include "lockstep/zero/bucket/low_precision_policy.h"
#include "lockstep/zero_options/offload.h"

namespace lockstep::zero {

/// Chooses the memory of offloaded shards, in the order of their creation.
///
/// With OffloadParam's kNvme the shards are in one file of this rank, except the first ones, up to
/// max_in_cpu elements. The choice is fixed: a cache would evict each shard before its next use,
/// since buckets are used in turn.
class ShardPlaces {
 public:
  /// `keep_rounded_on_device`: see Place. Throws ConfigError if the folder does not exist.
  explicit ShardPlaces(const OffloadParam& options, bool keep_rounded_on_device = false);
  /// Reserves space for this rank's shards of `parameters`, in their update dtype. One reservation
  /// for all finds a lack of space early. Throws ConfigError if space is too small.
  void reserve(
      const NamedTensors& parameters, int ranks, const LowPrecisionPolicy& low_precision_policy);

  struct Place {
    OffloadDevice device = OffloadDevice::kNone;
    bool pinned = false;
    std::shared_ptr<offload::ScratchFile> file = nullptr;  ///< For kNvme.
    /// Masters keep a rounded copy on the bucket's device, from which they are gathered.
    bool keep_rounded_on_device = false;
  };
  /// Returns the place of the next shard.
  Place next(int64_t elements);

 private:
  OffloadParam options_;
  bool keep_rounded_on_device_;
  std::shared_ptr<offload::ScratchFile> file_;
  int64_t in_memory_ = 0;  ///< Elements.
};

/// Stores this rank's shard of a bucket on the bucket's device, in host memory or in a file. The
/// dtype is the bucket's, or fp32 for an fp16 or bf16 bucket.
///
/// The fp32 values are masters: the bucket has the rounded values. Storing a value that equals the
/// rounded master changes nothing, so only values that a program wrote replace the lost precision.
/// Masters off the bucket's device may have a rounded copy on the bucket's device, which is
/// recomputed after `mark_changed`.
///
/// Extra memory during a store: 7 bytes per element of one bucket's shard, with files 15. Not
/// thread-safe.
class ShardStore {
 public:
  /// Starts with zeros of `dtype`. `options`: those of the bucket, which `group` shards.
  ShardStore(
      const Group& group,
      int64_t elements,
      const at::TensorOptions& options,
      at::ScalarType dtype,
      const ShardPlaces::Place& place);

  /// Returns the full shard, 1-D. It may be on the host while the bucket is not, or in a file.
  const at::Tensor& values() const { return values_; }
  bool are_masters() const { return are_masters_; }
  /// Returns whether the stored values themselves have the bucket's dtype and device.
  bool is_on_device() const { return !are_masters_ && !is_off_device(); }
  /// Returns the shard in the bucket's dtype and on its device. The result is the stored values,
  /// the rounded copy, or a copy in `buffer` (undefined: in new memory).
  at::Tensor on_device(const at::Tensor& buffer = {});
  /// Replaces the shard by `from`, a tensor on the bucket's device.
  void store(const at::Tensor& from);
  /// Must be called after other code, for instance an update, has changed the values.
  void mark_changed() { rounded_is_current_ = false; }
  /// Null unless the shard is in a file.
  const std::shared_ptr<offload::FileTensor>& file() const { return file_; }
  /// The rounded copy of masters; undefined if none is kept.
  const at::Tensor& rounded() const { return rounded_; }

 private:
  /// Returns whether the shard is in a file or on another device than the bucket.
  bool is_off_device() const { return file_ != nullptr || values_.device() != options_.device(); }
  /// Copies the shard to `to`, a tensor on the bucket's device, in order of its current stream.
  void load(const at::Tensor& to) const;
  /// Returns the shard's own values in memory.
  at::Tensor in_memory() const;
  void store_written(const at::Tensor& from);

  at::TensorOptions options_;  ///< The bucket's.
  bool are_masters_;
  at::Tensor values_;
  std::shared_ptr<offload::FileTensor> file_;
  at::Tensor rounded_;
  bool rounded_is_current_ = false;
};

}  // namespace lockstep::zero
