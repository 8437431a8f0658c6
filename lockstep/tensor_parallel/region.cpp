// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor_parallel/region.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <torch/csrc/autograd/custom_function.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/autograd_group.h"

namespace lockstep::tensor_parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

/// A direction of a function below: maps a tensor by communication.
using Direction = at::Tensor (*)(const at::Tensor& input, int64_t dim, Group& group);

at::Tensor same(const at::Tensor& input, int64_t /*dim*/, Group& /*group*/) {
  return input;
}

at::Tensor sum(const at::Tensor& input, int64_t /*dim*/, Group& group) {
  // A copy, since the caller may use its tensor later.
  return group.all_reduce(input.clone(at::MemoryFormat::Contiguous)).wait();
}

/// Moves the ranks' parts, which lie one after the other in dimension 0, to `dim`.
at::Tensor parts_to_dim(const at::Tensor& parts, int64_t dim, int ranks) {
  if (dim == 0) {
    return parts;
  }
  const int64_t rows = parts.size(0) / ranks;
  // (ranks * rows, ..., size, ...) -> (rows, ..., ranks * size, ...)
  at::Tensor split = parts.unflatten(0, {ranks, rows}).movedim(0, dim);
  return split.flatten(dim, dim + 1);
}

at::Tensor gather(const at::Tensor& input, int64_t dim, Group& group) {
  return parts_to_dim(group.all_gather(input.contiguous()).wait(), dim, group.size());
}

at::Tensor own(const at::Tensor& input, int64_t dim, Group& group) {
  const int64_t size = input.size(dim) / group.size();
  return input.narrow(dim, size * group.rank(), size).contiguous();
}

at::Tensor scatter(const at::Tensor& input, int64_t dim, Group& group) {
  const at::Tensor parts = input.unflatten(dim, {group.size(), input.size(dim) / group.size()})
                               .movedim(dim, 0)
                               .contiguous();
  return group.reduce_scatter(parts).wait().squeeze(0);
}

/// A function whose two directions communicate.
template <Direction Forward, Direction Backward>
class Mapping : public torch::autograd::Function<Mapping<Forward, Backward>> {
 public:
  static Variable forward(
      AutogradContext* context, const Variable& input, int64_t dim, const Group& group) {
    context->saved_data["dim"] = dim;
    context->saved_data["group"] = comm::to_ivalue(group);
    Group own_handle = group;
    const Variable output = Forward(input, dim, own_handle);
    // Without a view's history, so that modules may change the result in place.
    return output.is_same(input) ? input.view_as(input) : output.variable_data();
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    Group group = comm::to_group(context->saved_data["group"]);
    return {
        Backward(gradients[0], context->saved_data["dim"].toInt(), group), Variable(), Variable()};
  }
};

/// Returns `dim` as an index from the front. Throws ConfigError unless the ranks divide it.
int64_t checked_dim(const at::Tensor& tensor, int64_t dim, const Group& group) {
  const int64_t index = dim < 0 ? dim + tensor.dim() : dim;
  if (index < 0 || index >= tensor.dim() || tensor.size(index) % group.size() != 0) {
    throw ConfigError(
        "tensor_parallel",
        fmt::format(
            "dimension {} of activations [{}] is divided; expected a multiple of {}, the "
            "ranks "
            "that divide it; pad the sequence",
            dim,
            fmt::join(tensor.sizes(), ", "),
            group.size()));
  }
  return index;
}

}  // namespace

at::Tensor copy_to_ranks(const at::Tensor& input, const Group& group) {
  return group.size() == 1 ? input : Mapping<same, sum>::apply(input, 0, group);
}

at::Tensor sum_over_ranks(const at::Tensor& partial, const Group& group) {
  return group.size() == 1 ? partial : Mapping<sum, same>::apply(partial, 0, group);
}

at::Tensor gather_columns(const at::Tensor& own_columns, const Group& group) {
  return group.size() == 1 ? own_columns
                           : Mapping<gather, own>::apply(own_columns, own_columns.dim() - 1, group);
}

at::Tensor gather_sequence(const at::Tensor& part, int64_t dim, const Group& group) {
  if (group.size() == 1) {
    return part;
  }
  return Mapping<gather, scatter>::apply(part, dim < 0 ? dim + part.dim() : dim, group);
}

at::Tensor scatter_sum(const at::Tensor& partial, int64_t dim, const Group& group) {
  if (group.size() == 1) {
    return partial;
  }
  return Mapping<scatter, gather>::apply(partial, checked_dim(partial, dim, group), group);
}

at::Tensor own_part(const at::Tensor& input, int64_t dim, const Group& group) {
  if (group.size() == 1) {
    return input;
  }
  return Mapping<own, gather>::apply(input, checked_dim(input, dim, group), group);
}

}  // namespace lockstep::tensor_parallel
