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

/// What becomes of trained parameters of fp16 and bf16.
struct LowPrecisionPolicy {
  /// They are updated as fp32 masters, of which their own values are the rounding. Unless: as they
  /// are, with gradients of their dtype.
  bool fp32_masters = true;
  /// With masters: what a rank's backwards give before they are averaged adds up in fp32. Unless:
  /// in their dtype, as autograd adds.
  bool fp32_gradients = false;
  /// With masters: gradients travel in fp32. Unless: in their dtype.
  bool fp32_comm = false;
  /// With masters: averages add up rounded to their dtype each time. Unless: in fp32.
  bool rounded_sums = false;
};

/// Whether it is a trained one of fp16 or bf16.
bool is_trained_in_16_bits(const at::Tensor& parameter);
/// What a parameter is updated in: fp32 where there are masters, else its own dtype.
at::ScalarType update_dtype(
    const at::Tensor& parameter, const LowPrecisionPolicy& low_precision_policy = {});

/// Decides where shards that lie apart from their buckets do, in the order they are made: those of
/// OffloadParam's kNvme in one file of this rank, but for the first of them, up to max_in_cpu
/// elements. Always the same ones: buckets are used one after the other, so of any that come and go
/// each would have gone when its turn comes.
class ShardPlaces {
 public:
  /// `copies_stay`: see Place. ConfigError if there is no such folder.
  explicit ShardPlaces(const OffloadParam& options, bool copies_stay = false);
  /// Room for this rank's part of `parameters`, as they are updated, all at once, so that it is
  /// missed before anything is laid out. ConfigError if there is none.
  void reserve(
      const NamedTensors& parameters, int ranks, const LowPrecisionPolicy& low_precision_policy);

  struct Place {
    OffloadDevice device = OffloadDevice::kNone;
    bool pinned = false;
    std::shared_ptr<offload::ScratchFile> file = nullptr;  ///< Of kNvme.
    /// What masters round to stays with their bucket, and comes together from there.
    bool copy_stays = false;
  };
  /// Of the next shard.
  Place next(int64_t elements);

 private:
  OffloadParam options_;
  bool copies_stay_;
  std::shared_ptr<offload::ScratchFile> file_;
  int64_t in_memory_ = 0;  ///< Elements.
};

/// The values of a bucket that this rank owns, wherever they lie: with the bucket, in the host's
/// memory, or in a file; in the bucket's dtype, or in fp32 where that is fp16 or bf16. Then they
/// are masters: the bucket has what they round to, and what is stored and is that already changes
/// nothing, so that only what a program wrote takes the place of what the rounding has lost.
/// Memory, while such are stored: of one bucket's shard 7 bytes an element, in files 15. Thread
/// safety: none.
class ShardStore {
 public:
  /// Zeros of `dtype`. `options`: of the bucket, which `group` shares out.
  ShardStore(
      const Group& group,
      int64_t elements,
      const at::TensorOptions& options,
      at::ScalarType dtype,
      const ShardPlaces::Place& place);

  /// All of them, 1-D; it may be on the host while the bucket is not, or in a file.
  const at::Tensor& values() const { return values_; }
  /// Whether they lie elsewhere than the bucket.
  bool is_elsewhere() const { return file_ != nullptr || values_.device() != device_; }
  /// Whether they have to be brought to be computed with: by `load`.
  bool is_away() const { return are_masters_ || is_elsewhere(); }
  bool are_masters() const { return are_masters_; }
  /// Onto `to`, a tensor of the bucket, in the order of its current stream.
  void load(const at::Tensor& to) const;
  /// `from`, of the bucket, is what they are from now on.
  void store(const at::Tensor& from);
  /// Null unless they lie in one.
  const std::shared_ptr<offload::FileTensor>& file() const { return file_; }

 private:
  /// In memory.
  at::Tensor in_memory() const;
  void store_written(const at::Tensor& from);

  at::Device device_;
  bool are_masters_;
  at::Tensor values_;
  std::shared_ptr<offload::FileTensor> file_;
};

}  // namespace lockstep::zero
