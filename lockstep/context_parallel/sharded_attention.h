// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include <ATen/core/Scalar.h>
#include <ATen/core/Tensor.h>

#include "lockstep/comm/group.h"
#include "lockstep/comm/tensor/attention_interceptor.h"
#include "lockstep/context_parallel/attention_arguments.h"
#include "lockstep/context_parallel/context_parallel_scope.h"

namespace lockstep::context_parallel {

/// Computes the attentions of a ContextParallelScope. attention_dispatch.cpp calls it.
class ShardedAttention final : public comm::AttentionInterceptor {
 public:
  ShardedAttention(
      const Group& group,
      const SequenceShard& shard,
      AttentionMethod method,
      ArangePositions arange)
      : group_(group), shard_(shard), method_(method), arange_(arange) {}

  at::Tensor attention(
      const at::Tensor& query,
      const at::Tensor& key,
      const at::Tensor& value,
      bool has_mask,
      const AttentionOptions& options);
  /// Throws ConfigError if a softmax of `scores` over `dim` is attention over this rank's part.
  void check_softmax(const at::Tensor& scores, int64_t dim) const;
  /// Returns `plain`, the result of arange, or this rank's positions in its place.
  at::Tensor arange(
      const at::Tensor& plain,
      const at::Scalar& start,
      const at::Scalar& end,
      const at::Scalar& step) const;
  /// Throws ConfigError if the first `count` elements of `table` along `dim` may be a parameter's,
  /// or a buffer's, for the first positions of the sequence, which this rank's are not.
  void check_slice(const at::Tensor& table, int64_t dim, int64_t count) const;
  /// Throws ConfigError because `operation` computes attention over this rank's part.
  void check_operation(const char* operation) const;

  int64_t calls() const { return calls_; }
  /// Throws ConfigError if no attention was computed.
  void expect_calls() const;

 private:
  const Group group_;
  const SequenceShard shard_;
  const AttentionMethod method_;
  const ArangePositions arange_;
  std::atomic<int64_t> calls_{0};
};

/// Registers kernels for comm::kAttentionKey, once. Throws ConfigError if other code has some.
void install_attention_dispatch();

}  // namespace lockstep::context_parallel
