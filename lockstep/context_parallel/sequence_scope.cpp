// SPDX-License-Identifier: Apache-2.0
#include "lockstep/context_parallel/sequence_scope.h"

#include <memory>
#include <utility>

#include <fmt/format.h>

#include <torch/csrc/autograd/custom_function.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/fail_together.h"
#include "lockstep/comm/tensor/attention_interceptor.h"
#include "lockstep/context_parallel/group_function.h"
#include "lockstep/context_parallel/sharded_attention.h"

namespace lockstep {
namespace {

constexpr const char* kScope = "sequence_scope";

/// Adds the ranks' values. The gradient is that of the sum of all ranks' losses.
struct SumOverRanks : torch::autograd::Function<SumOverRanks> {
  static at::Tensor forward(
      torch::autograd::AutogradContext* context, const at::Tensor& own, Group group) {
    context_parallel::keep_group(*context, group);
    return group.all_reduce(own.clone()).wait();
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context, const torch::autograd::variable_list& gradients) {
    context_parallel::refuse_create_graph(kScope);
    return {
        context_parallel::group_of(*context).all_reduce(gradients[0].clone()).wait(), at::Tensor()};
  }
};

bool has_dim(const SequenceBuffer& buffer) {
  return buffer.tensor.defined() && buffer.dim >= 0 && buffer.dim < buffer.tensor.dim();
}

/// Returns the length of the sequence. Throws ConfigError for buffers that cannot be divided.
int64_t checked_length(const std::vector<SequenceBuffer>& buffers) {
  if (buffers.empty()) {
    throw ConfigError(
        kScope,
        "no buffer is given, so the length of the sequence is unknown; pass the tokens and their "
        "labels, such as {{batch.data, 1}, {batch.target, 1}}");
  }
  for (size_t i = 0; i < buffers.size(); ++i) {
    const SequenceBuffer& buffer = buffers[i];
    if (!has_dim(buffer)) {
      throw ConfigError(
          kScope,
          fmt::format(
              "buffer {} has {} dimensions, and dimension {} is to be its sequence; give the index "
              "of one of its dimensions",
              i,
              buffer.tensor.defined() ? buffer.tensor.dim() : 0,
              buffer.dim));
    }
    if (buffer.tensor.requires_grad()) {
      throw ConfigError(
          kScope,
          fmt::format(
              "buffer {} requires a gradient, which would be that of its part; divide it by "
              "shard().shard_sequence, which is differentiable",
              i));
    }
    const int64_t expected = buffers[0].tensor.size(buffers[0].dim);
    if (buffer.tensor.size(buffer.dim) != expected) {
      throw ConfigError(
          kScope,
          fmt::format(
              "buffer {} has {} positions in dimension {}, and buffer 0 has {}; expected tensors "
              "of "
              "one sequence, each once",
              i,
              buffer.tensor.size(buffer.dim),
              buffer.dim,
              expected));
    }
    for (size_t j = 0; j < i; ++j) {
      if (buffers[j].tensor.is_same(buffer.tensor)) {
        throw ConfigError(
            kScope,
            fmt::format("buffers {} and {} are the same tensor; expected each tensor once", j, i));
      }
    }
  }
  return buffers[0].tensor.size(buffers[0].dim);
}

at::Tensor mean_over(Group line, const at::Tensor& sum, const at::Tensor& count) {
  if (sum.numel() != 1 || count.numel() != 1) {
    throw ConfigError(
        kScope,
        fmt::format(
            "sum has {} elements and count {}; expected one each: the sum of the losses of this "
            "process's part, and their number",
            sum.numel(),
            count.numel()));
  }
  if (line.size() == 1) {
    return sum / count;
  }
  const at::Tensor all = line.all_reduce(count.detach().to(at::kDouble).clone()).wait();
  return SumOverRanks::apply(sum, line) / all.to(sum.device());
}

SequenceLayout layout_of(const comm::MeshGroups& mesh, const SequenceScopeOptions& options) {
  return options.layout.value_or(
      mesh.shape.sp > 1 ? SequenceLayout::kContiguous : SequenceLayout::kZigzag);
}

/// Decides whether an arange of the part's length is one of positions: it is not known if another
/// dimension has that size.
ArangePositions arange_of(
    const std::vector<SequenceBuffer>& buffers,
    const SequenceShard& shard,
    const SequenceScopeOptions& options) {
  if (!options.arange_gives_positions) {
    return ArangePositions::kUnchanged;
  }
  for (const SequenceBuffer& buffer : buffers) {
    for (int64_t dim = 0; dim < buffer.tensor.dim(); ++dim) {
      if (dim != buffer.dim && buffer.tensor.size(dim) == shard.local_length()) {
        return ArangePositions::kRefused;
      }
    }
  }
  return ArangePositions::kOfPart;
}

}  // namespace

SequenceScope::SequenceScope(
    const comm::MeshGroups& mesh,
    const std::vector<SequenceBuffer>& buffers,
    const SequenceScopeOptions& options)
    : group_(mesh.sequence),
      shard_(checked_length(buffers), mesh.sequence, layout_of(mesh, options)),
      scope_(
          mesh.sequence,
          shard_,
          mesh.shape.sp > 1 ? AttentionMethod::kUlysses : AttentionMethod::kRing,
          arange_of(buffers, shard_, options)) {
  if (group_.size() == 1) {
    return;
  }
  if (mesh.pipeline.size() > 1) {
    scope_.permit_no_attention();  // Other stages may have all of it.
  }
  for (const SequenceBuffer& buffer : buffers) {
    const at::Tensor original = buffer.tensor.detach();
    buffer.tensor.set_data(shard_.shard_sequence(original, buffer.dim).contiguous());
    if (buffer.restore) {
      cuts_.push_back({buffer.tensor, original});
    }
  }
}

SequenceScope::~SequenceScope() {
  for (const Cut& cut : cuts_) {
    cut.tensor.set_data(cut.original);
  }
}

at::Tensor SequenceScope::mean(const at::Tensor& sum, const at::Tensor& count) const {
  return mean_over(group_, sum, count);
}

at::Tensor mean_over_sequence(
    const comm::MeshGroups& mesh, const at::Tensor& sum, const at::Tensor& count) {
  return mean_over(mesh.sequence, sum, count);
}

at::Tensor SequenceScope::gather(const at::Tensor& part, int64_t dim) const {
  return group_.size() == 1 ? part : shard_.unshard_sequence(part, dim, group_);
}

namespace context_parallel {

void expect_divided_attention(const Group& stages) {
  const auto current =
      std::dynamic_pointer_cast<ShardedAttention>(comm::AttentionInterceptor::current());
  const bool is_called = any_rank(stages, current != nullptr && current->calls() > 0);
  if (current == nullptr) {
    throw ConfigError(
        kScope,
        "the mesh has cp or sp, but backward was called outside of a SequenceScope, so the "
        "processes of a line would all compute the same; open one around forward and backward: "
        "SequenceScope scope(accelerator.mesh(), {{tokens, 1}, {labels, 1}})");
  }
  if (!is_called) {
    current->expect_calls();
  }
}

}  // namespace context_parallel
}  // namespace lockstep
