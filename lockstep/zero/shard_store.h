// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group.h"
#include "lockstep/comm/named_tensor.h"
#include "lockstep/offload/file_tensor.h"
#include "lockstep/offload/options.h"

namespace lockstep::zero {

/// Decides where the shards of paged buckets lie, in the order they are made: those of
/// OffloadParam's kNvme in one file of this rank, but for the first of them, up to max_in_cpu
/// elements. Always the same ones: buckets are used one after the other, so of any that come and go
/// each would have gone when its turn comes.
class ShardPlaces {
 public:
  /// ConfigError if there is no such folder.
  explicit ShardPlaces(const OffloadParam& options);
  /// Room for this rank's part of those of `parameters` that have more than `kept` elements, all at
  /// once, so that it is missed before anything is laid out. ConfigError if there is none.
  void reserve(const NamedTensors& parameters, int64_t kept, int ranks);

  struct Place {
    OffloadDevice device = OffloadDevice::kNone;
    bool pinned = false;
    std::shared_ptr<offload::ScratchFile> file = nullptr;  ///< Of kNvme.
  };
  /// Of the next shard.
  Place next(int64_t elements);

 private:
  OffloadParam options_;
  std::shared_ptr<offload::ScratchFile> file_;
  int64_t in_memory_ = 0;  ///< Elements.
};

/// The values of a paged bucket that this rank owns, wherever they lie: with the bucket, in the
/// host's memory, or in a file. Thread safety: none.
class ShardStore {
 public:
  /// Zeros. `options`: of the bucket, which `group` shares out.
  ShardStore(
      const Group& group,
      int64_t elements,
      const at::TensorOptions& options,
      const ShardPlaces::Place& place);

  /// All of them, 1-D; it may be on the host while the bucket is not, or in a file.
  const at::Tensor& values() const { return values_; }
  /// Whether they have to be brought to be computed with: by `load`.
  bool is_away() const { return file_ != nullptr || values_.device() != device_; }
  /// Onto `to`, a tensor of the bucket's device, in the order of its current stream.
  void load(const at::Tensor& to) const;
  /// `from`, of the bucket's device, is what they are from now on.
  void store(const at::Tensor& from);
  /// Null unless they lie in one.
  const std::shared_ptr<offload::FileTensor>& file() const { return file_; }

 private:
  at::Device device_;
  at::Tensor values_;
  std::shared_ptr<offload::FileTensor> file_;
};

}  // namespace lockstep::zero
