// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <variant>

#include <ATen/core/Tensor.h>

#include "lockstep/zero/bucket/bucket_comm_format.h"
#include "lockstep/zero/bucket/bucket_layout.h"
#include "lockstep/zero/bucket/low_precision_policy.h"
#include "lockstep/zero/bucket/shard_store.h"
#include "lockstep/zero/coordinator/flat_param_buffer.h"

namespace lockstep::zero {

/// The storage of parameters between their uses: in full, or only a shard (ZeRO stage 3).
enum class ParamPlacement {
  kReplicated,  ///< Every rank always has the full values.
  kSharded      ///< Stage 3: unsharded when an operation uses them, and freed afterwards.
};

/// This rank's shard of frozen parameters, stored in 8 bits. Not thread-safe.
class QuantizedShard {
 public:
  /// Starts without values. `format`: must outlive this.
  explicit QuantizedShard(const BucketCommFormat& format) : format_(format) {}

  const at::Tensor& bytes() const { return bytes_; }
  at::Tensor dequantize() const { return format_.decode(bytes_); }
  /// Replaces all values.
  void store(const at::Tensor& values) { bytes_ = format_.encode(values); }
  /// Replaces the values from element `begin` on. All values stay exact until `end_writes`, so that
  /// values of several calls are rounded together.
  void write(int64_t begin, const at::Tensor& values);
  void end_writes() { exact_.reset(); }

 private:
  const BucketCommFormat& format_;
  at::Tensor bytes_;
  at::Tensor exact_;  ///< Undefined unless values were written.
};

/// Every rank has the full values; its shard is a part of them.
struct Replicated {
  at::Tensor full;

  const at::Tensor& values() const { return full; }
};

/// Every rank has the full values, which are 16-bit, and its shard of fp32 masters.
struct ReplicatedWithMasters {
  at::Tensor full;
  ShardStore masters;

  const at::Tensor& values() const { return full; }
};

/// A rank has its shard, and the full values only while they are unsharded.
struct Sharded {
  std::unique_ptr<FlatParamBuffer> full;
  ShardStore shard;

  const at::Tensor& values() const { return full->values(); }
};

/// The same with a frozen shard in 8 bits.
struct ShardedQuantized {
  std::unique_ptr<FlatParamBuffer> full;
  QuantizedShard shard;

  const at::Tensor& values() const { return full->values(); }
};

/// The memory of one bucket's parameters: one of four kinds.
using BucketStorage = std::variant<Replicated, ReplicatedWithMasters, Sharded, ShardedQuantized>;

/// Selects the kind for a bucket of parameters like `parameter`, and allocates it with zeros.
/// `format`, of the bucket: must outlive the storage. `options`: those of the full values.
/// `places`: see ShardedBucket. Throws ConfigError if a place is too small.
BucketStorage create_storage(
    const at::Tensor& parameter,
    const BucketLayout& layout,
    const BucketCommFormat& format,
    const at::TensorOptions& options,
    ParamPlacement placement,
    ShardPlaces* places,
    const LowPrecisionPolicy& low_precision_policy);

/// Returns the full values' buffer of a sharded kind; null for others.
FlatParamBuffer* buffer_of(const BucketStorage& storage);
/// Returns the shard or the masters if these are separate, unquantized memory; else null.
const ShardStore* store_of(const BucketStorage& storage);

}  // namespace lockstep::zero
