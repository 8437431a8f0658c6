// SPDX-License-Identifier: Apache-2.0
#include "lockstep/context_parallel/sequence_shard.h"

#include <fmt/format.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/tensor/attention_interceptor.h"
#include "lockstep/context_parallel/group_function.h"

namespace lockstep {
namespace {

using context_parallel::group_of;
using context_parallel::keep_group;
using context_parallel::refuse_create_graph;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Gathers the parts of all ranks along dimension 0.
struct GatherParts : torch::autograd::Function<GatherParts> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& part, Group group) {
    keep_group(*context, group);
    return group.all_gather(part.contiguous()).wait();
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_create_graph("unshard_sequence");
    return {group_of(*context).reduce_scatter(gradients[0].contiguous()).wait(), at::Tensor()};
  }
};

void expect_size(const char* call, const at::Tensor& tensor, int64_t dim, int64_t expected) {
  if (tensor.dim() == 0 || tensor.size(dim) != expected) {
    throw ConfigError(
        call,
        fmt::format(
            "dimension {} of the tensor has another length than the sequence; got {}, expected {}; "
            "construct the SequenceShard with the length of the full sequence",
            dim,
            tensor.dim() == 0 ? 0 : tensor.size(dim),
            expected));
  }
}

}  // namespace

SequenceShard::SequenceShard(int64_t length, int rank, int ranks, SequenceLayout layout)
    : length_(length), rank_(rank), ranks_(ranks), layout_(layout) {
  if (ranks < 1 || rank < 0 || rank >= ranks) {
    throw ConfigError(
        "sequence_shard", fmt::format("rank is out of range; got {} of {} ranks", rank, ranks));
  }
  const int64_t multiple = length_multiple(ranks, layout);
  if (length < 1 || length % multiple != 0) {
    throw ConfigError(
        "sequence_shard",
        fmt::format(
            "the sequence cannot be divided over {} ranks{}; got {} positions, expected a positive "
            "multiple of {}; pad the sequence to {} positions, with labels that the loss ignores",
            ranks,
            layout == SequenceLayout::kZigzag ? " in the zigzag layout, two chunks each" : "",
            length,
            multiple,
            padded_length(length, ranks, layout)));
  }
}

SequenceShard::SequenceShard(int64_t length, const Group& group, SequenceLayout layout)
    : SequenceShard(length, group.rank(), group.size(), layout) {}

int64_t SequenceShard::length_multiple(int ranks, SequenceLayout layout) {
  // A group of one has everything in order, in either layout.
  return layout == SequenceLayout::kZigzag && ranks > 1 ? 2 * int64_t{ranks} : ranks;
}

int64_t SequenceShard::padded_length(int64_t length, int ranks, SequenceLayout layout) {
  const int64_t multiple = length_multiple(ranks, layout);
  return length < 1 ? multiple : (length + multiple - 1) / multiple * multiple;
}

at::Tensor SequenceShard::positions(at::Device device) const {
  return shard_sequence(at::arange(length_, at::TensorOptions(at::kLong).device(device)), 0)
      .contiguous();
}

at::Tensor SequenceShard::shard_sequence(const at::Tensor& full, int64_t dim) const {
  expect_size("shard_sequence", full, dim, length_);
  // A scope would take the first part for a table of positions.
  const c10::impl::ExcludeDispatchKeyGuard own_work(comm::kAttentionKey);
  const int64_t local = local_length();
  if (layout_ == SequenceLayout::kContiguous || ranks_ == 1) {
    return full.narrow(dim, rank_ * local, local);
  }
  const int64_t chunk = local / 2;
  return at::cat(
      {full.narrow(dim, rank_ * chunk, chunk),
       full.narrow(dim, (2 * int64_t{ranks_} - 1 - rank_) * chunk, chunk)},
      dim);
}

at::Tensor SequenceShard::unshard_sequence(
    const at::Tensor& part, int64_t dim, const Group& group) const {
  expect_group("unshard_sequence", group);
  expect_size("unshard_sequence", part, dim, local_length());
  const at::Tensor gathered = GatherParts::apply(part.movedim(dim, 0), group);
  return to_sequence_order(gathered, 0).movedim(0, dim);
}

std::vector<int64_t> SequenceShard::chunks_in_rank_order() const {
  std::vector<int64_t> chunks;
  for (int64_t rank = 0; rank < ranks_; ++rank) {
    chunks.push_back(rank);
    chunks.push_back(2 * int64_t{ranks_} - 1 - rank);
  }
  return chunks;
}

at::Tensor SequenceShard::to_sequence_order(const at::Tensor& ranks_in_order, int64_t dim) const {
  if (layout_ == SequenceLayout::kContiguous || ranks_ == 1) {
    return ranks_in_order;
  }
  const std::vector<at::Tensor> parts = ranks_in_order.chunk(2 * int64_t{ranks_}, dim);
  std::vector<at::Tensor> ordered(parts.size());
  size_t next = 0;
  for (const int64_t chunk : chunks_in_rank_order()) {
    ordered[static_cast<size_t>(chunk)] = parts[next++];
  }
  return at::cat(ordered, dim);
}

at::Tensor SequenceShard::to_rank_order(const at::Tensor& sequence, int64_t dim) const {
  if (layout_ == SequenceLayout::kContiguous || ranks_ == 1) {
    return sequence;
  }
  const std::vector<at::Tensor> parts = sequence.chunk(2 * int64_t{ranks_}, dim);
  std::vector<at::Tensor> ordered;
  for (const int64_t chunk : chunks_in_rank_order()) {
    ordered.push_back(parts[static_cast<size_t>(chunk)]);
  }
  return at::cat(ordered, dim);
}

void SequenceShard::expect_group(const char* where, const Group& group) const {
  if (group.size() != ranks_ || group.rank() != rank_) {
    throw ConfigError(
        where,
        fmt::format(
            "the SequenceShard belongs to another group; got rank {} of {}, expected rank {} of "
            "{}; "
            "construct it with the group that is passed here",
            rank_,
            ranks_,
            group.rank(),
            group.size()));
  }
}

}  // namespace lockstep
