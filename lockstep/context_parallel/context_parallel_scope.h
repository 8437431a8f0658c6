// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include <torch/nn/module.h>

#include "lockstep/comm/group.h"
#include "lockstep/comm/tensor/attention_interceptor.h"
#include "lockstep/context_parallel/sequence_shard.h"

namespace lockstep {

/// Selects how attention over a sharded sequence is computed.
enum class AttentionMethod {
  kRing,    ///< ring_attention(): any number of heads, no dropout in the attention.
  kUlysses  ///< ulysses_attention(): at most as many ranks as heads.
};

/// Selects what arange(0, T/P), in steps of 1, returns within a scope.
enum class ArangePositions {
  kUnchanged,
  kOfPart,  ///< This rank's positions in the sequence, in the dtype that arange would have.
  kRefused  ///< It throws ConfigError: T/P is also the size of another dimension.
};

namespace context_parallel {
class ShardedAttention;
}

/// RAII scope: attention on this thread is over a sequence that is divided over the ranks of a
/// group. For modules that know nothing of it.
///
/// Every call of scaled_dot_product_attention, however it reaches torch, becomes ring_attention()
/// or ulysses_attention(), with their guarantees and costs. All other operations are unchanged:
/// they must work on each position alone, and use SequenceShard::positions. A group of one computes
/// as without a scope. Under autocast the tensors are cast first, as torch does. Backward may be
/// inside or outside of the scope; a forward that is computed again during backward must run
/// inside, or by lockstep's activation_checkpoint, which remembers the scope.
///
/// An attention that the scope cannot replace throws ConfigError in place of a result for this
/// rank's part of the sequence alone: a call with attn_mask, other lengths than those of the shard,
/// torch's attention kernels called directly or by a fused module, and a softmax over scores of
/// (..., T/P, T/P), which is attention written by hand. A LocalAttentionScope within permits them.
///
/// Thread safety: concerns its thread only, and the threads of a backward that it calls. Must be
/// destroyed on its thread, in reverse order of construction. Cost: none for other operations.
/// Modelled on torch.distributed.tensor.experimental.context_parallel.
class [[nodiscard]] ContextParallelScope {
 public:
  /// Throws ConfigError if `shard` belongs to another group, and if other code in this process uses
  /// torch's dispatch key TESTING_ONLY_GenericMode.
  ContextParallelScope(
      const Group& group,
      const SequenceShard& shard,
      AttentionMethod method,
      ArangePositions arange = ArangePositions::kUnchanged);
  /// Logs a warning if no attention was computed, unless finish() was called.
  ~ContextParallelScope();
  ContextParallelScope(const ContextParallelScope&) = delete;
  ContextParallelScope& operator=(const ContextParallelScope&) = delete;

  /// Returns the number of attentions that the scope has computed, also during a backward.
  int64_t attention_calls() const;
  /// Throws ConfigError if attention_calls() is 0: the model's attention is not torch's, so that
  /// each rank has seen its part of the sequence alone. Call it after the forward.
  void finish();
  /// The end of the scope logs no warning: this rank may compute layers without attention.
  void permit_no_attention() { is_finished_ = true; }

 private:
  std::shared_ptr<context_parallel::ShardedAttention> attention_;
  comm::AttentionInterceptor::Scope scope_;
  bool is_finished_ = false;
};

/// RAII scope: attention on this thread is torch's own again, within a ContextParallelScope. For
/// attention to keys that every rank has in full, and over other dimensions than the sequence.
class [[nodiscard]] LocalAttentionScope {
 public:
  LocalAttentionScope() : scope_(nullptr) {}

 private:
  comm::AttentionInterceptor::Scope scope_;
};

/// Throws ConfigError, naming the submodule, if `module` is or has one of torch::nn's modules that
/// compute attention without scaled_dot_product_attention: MultiheadAttention, and Transformer with
/// its encoders, decoders and layers. Call it before training with a sharded sequence.
void expect_no_hidden_attention(const torch::nn::Module& module);

}  // namespace lockstep
