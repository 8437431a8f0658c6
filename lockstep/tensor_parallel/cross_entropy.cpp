// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor_parallel/cross_entropy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/Functions.h>
#include <torch/csrc/autograd/custom_function.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class CrossEntropy : public torch::autograd::Function<CrossEntropy> {
 public:
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& given,
      const at::Tensor& targets,
      Group group,
      int64_t ignore_index) {
    const at::Tensor scores = given.scalar_type() == at::kDouble ? given : given.to(at::kFloat);
    const int64_t words = scores.size(1);
    const at::Tensor own = at::sub(targets, words * group.rank());
    const at::Tensor counts = at::ne(targets, ignore_index);
    const at::Tensor is_own =
        at::logical_and(counts, at::logical_and(at::ge(own, 0), at::lt(own, words)));
    const at::Tensor index = at::masked_fill(own, at::logical_not(is_own), 0).unsqueeze(1);

    const at::Tensor most = group.all_reduce(at::amax(scores, 1), ReduceOp::kMax).wait();
    const at::Tensor shifted = at::sub(scores, most.unsqueeze(1));
    at::Tensor probabilities = at::exp(shifted);
    const at::Tensor target_score =
        at::mul(at::gather(shifted, 1, index).squeeze(1), is_own.to(shifted.scalar_type()));
    const at::Tensor sums =
        group.all_reduce(at::stack({at::sum(probabilities, 1), target_score})).wait();
    probabilities.div_(sums[0].unsqueeze(1));

    const at::Tensor weight = counts.to(shifted.scalar_type());
    const at::Tensor number = at::sum(weight);
    const at::Tensor each = at::sub(at::log(sums[0]), sums[1]);
    context->save_for_backward({probabilities, index, is_own, at::div(weight, number)});
    context->saved_data["dtype"] = given.scalar_type();
    return at::div(at::sum(at::mul(each, weight)), number);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    at::Tensor gradient = saved[0].clone();
    gradient.scatter_add_(1, saved[1], at::neg(saved[2].to(gradient.scalar_type())).unsqueeze(1));
    gradient.mul_(at::mul(saved[3], gradients[0]).unsqueeze(1));
    return {
        gradient.to(context->saved_data["dtype"].toScalarType()),
        at::Tensor(),
        at::Tensor(),
        at::Tensor()};
  }
};

}  // namespace

at::Tensor vocabulary_parallel_cross_entropy(
    const at::Tensor& scores, const at::Tensor& targets, const Group& group, int64_t ignore_index) {
  constexpr const char* kWhere = "vocabulary_parallel_cross_entropy";
  if (scores.dim() != 2 || targets.dim() != 1 || scores.size(0) != targets.size(0) ||
      targets.scalar_type() != at::kLong || !scores.is_floating_point()) {
    throw ConfigError(
        kWhere,
        fmt::format(
            "got scores [{}] and targets [{}]; expected floating point scores (N, words of a rank) "
            "and int64 targets (N); flatten them",
            fmt::join(scores.sizes(), ", "),
            fmt::join(targets.sizes(), ", ")));
  }
  if (group.size() == 1) {
    return at::cross_entropy_loss(scores, targets, {}, at::Reduction::Mean, ignore_index);
  }
  const int64_t words = scores.size(1) * group.size();
  const at::Tensor is_wrong = at::logical_and(
      at::ne(targets, ignore_index), at::logical_or(at::lt(targets, 0), at::ge(targets, words)));
  if (targets.is_cpu() && at::any(is_wrong).item<bool>()) {
    throw ConfigError(
        kWhere,
        fmt::format("a target is no word; expected 0 to {}, or {}", words - 1, ignore_index));
  }
  return CrossEntropy::apply(scores, targets, group, ignore_index);
}

}  // namespace lockstep
