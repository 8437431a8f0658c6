// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "lockstep/comm/mesh_groups.h"
#include "lockstep/context_parallel/context_parallel_scope.h"
#include "lockstep/context_parallel/sequence_shard.h"

namespace lockstep {

/// A tensor with all positions of a sequence, such as tokens, labels, or positions.
struct SequenceBuffer {
  at::Tensor tensor;
  int64_t dim = 1;      ///< The dimension of the positions.
  bool restore = true;  ///< The tensor has all positions again after the scope.
};

struct SequenceScopeOptions {
  /// Not set: kZigzag for cp, kContiguous for sp.
  std::optional<SequenceLayout> layout = std::nullopt;
  /// arange(T/P) returns the positions of this process's part, so that a model that makes its
  /// positions itself needs no change. False: arange is unchanged.
  bool arange_gives_positions = true;
};

/// RAII scope: the processes of a mesh's cp or sp line divide a sequence. For one micro-step of a
/// training loop, whose model knows nothing of it:
///
///   lockstep::SequenceScope scope(accelerator.mesh(), {{batch.data}, {batch.target}});
///   const auto labels = batch.target.flatten();
///   const auto sum = cross_entropy(model->forward(batch.data).flatten(0, 1), labels, kSum);
///   accelerator.backward(scope.mean(sum, (labels != -100).sum()));
///
/// The buffers have this process's part until the scope ends: all handles of such a tensor, but
/// neither its storage nor other tensors in that. Attention is that of a ContextParallelScope, by
/// ring attention for cp and Ulysses for sp. Without cp and sp nothing changes, so the same loop
/// runs in one process. Labels must be shifted before: the next token may be on another process.
///
/// Backward must be inside, as autograd refers to the buffers. Collective: all processes of the
/// line open it with buffers of the same length. Cost: a copy of this process's parts.
///
/// Thread safety: as ContextParallelScope. Modelled on Accelerate's maybe_context_parallel.
class [[nodiscard]] SequenceScope {
 public:
  /// Throws ConfigError without a buffer, for buffers of different lengths, for one that requires a
  /// gradient, and for a length that cannot be divided; then no buffer has changed.
  SequenceScope(
      const comm::MeshGroups& mesh,
      const std::vector<SequenceBuffer>& buffers,
      const SequenceScopeOptions& options = {});
  /// Restores the buffers. Warns as ContextParallelScope does.
  ~SequenceScope();
  SequenceScope(const SequenceScope&) = delete;
  SequenceScope& operator=(const SequenceScope&) = delete;

  const SequenceShard& shard() const { return shard_; }
  /// Returns this process's positions in the sequence, int64 (T/P).
  at::Tensor positions(at::Device device = at::kCPU) const { return shard_.positions(device); }

  /// Returns the mean over the items of the whole line, from this process's `sum` over `count`
  /// items: the loss of the full sequences, however many labels each part has. `sum`, `count`: one
  /// number each. The result, and its gradient after averaging, are those of one process.
  ///
  /// Pass it to backward(loss). For the mean over the items of all processes and micro-steps pass
  /// sum and count to backward(loss_sum, count) instead. Collective in the line, as its backward.
  at::Tensor mean(const at::Tensor& sum, const at::Tensor& count) const;
  /// Returns all positions of `part`, which has this process's along `dim`; for metrics. Collective
  /// in the line, as its backward. See SequenceShard::unshard_sequence.
  at::Tensor gather(const at::Tensor& part, int64_t dim = 1) const;

  /// Returns the number of attentions that were computed over the divided sequence.
  int64_t attention_calls() const { return scope_.attention_calls(); }

 private:
  struct Cut {
    at::Tensor tensor;
    at::Tensor original;
  };

  Group group_;
  SequenceShard shard_;
  std::vector<Cut> cuts_;
  ContextParallelScope scope_;
};

/// Does the same as SequenceScope::mean, for a loss function that is given no scope, such as that
/// of a pipeline.
at::Tensor mean_over_sequence(
    const comm::MeshGroups& mesh, const at::Tensor& sum, const at::Tensor& count);

namespace context_parallel {

/// Throws ConfigError unless this thread is within a SequenceScope or ContextParallelScope whose
/// attention was called: for a loss on a mesh with cp or sp. `stages`: the ranks of a pipeline, of
/// which one that calls attention suffices. Collective in `stages`.
void expect_divided_attention(const Group& stages);

}  // namespace context_parallel
}  // namespace lockstep
