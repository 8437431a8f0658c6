// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group.h"
#include "lockstep/zero/coordinator/flat_param_buffer.h"

namespace lockstep::zero {

/// The source of the values of an all-gather.
enum class Source {
  kShards,    ///< The shards of all ranks, in the communication dtype, possibly rounded.
  kExact,     ///< The shards of all ranks, bit-exact.
  kSecondary  ///< The secondary shards of the ranks of the hpZ group: the last kShards' values.
};

/// A unit of sharded parameters that the coordinator all-gathers before use and frees afterwards.
class ShardedUnit {
 public:
  ShardedUnit() = default;
  virtual ~ShardedUnit() = default;
  ShardedUnit(const ShardedUnit&) = delete;
  ShardedUnit& operator=(const ShardedUnit&) = delete;

  virtual FlatParamBuffer& buffer() = 0;
  /// Starts the all-gather into the buffer, which has memory. Collective; kSecondary only among the
  /// ranks of the hpZ group (zero_hpz_partition_size ranks).
  virtual Pending start_gather(Source source) = 0;
  /// Completes the all-gather with its result `received`: the buffer's values are valid afterwards.
  /// Local.
  virtual void finish_gather(const at::Tensor& /*received*/) {}
  /// Returns whether kShards gives other values than kExact. The answer never changes.
  virtual bool comm_is_rounded() const { return false; }
  /// Returns whether kSecondary is possible after kShards, until `drop_secondary`. The answer never
  /// changes.
  virtual bool keeps_secondary() const { return false; }
  virtual void drop_secondary() {}
  /// Copies this rank's shard from the buffer to its storage.
  virtual void write_back() = 0;
};

}  // namespace lockstep::zero
