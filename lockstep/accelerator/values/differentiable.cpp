// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/values/differentiable.h"

#include <memory>
#include <utility>

#include <torch/csrc/autograd/custom_function.h>

#include "lockstep/base/error.h"

namespace lockstep::internal {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor all_reduced(Group group, const at::Tensor& tensor, ReduceOp op) {
  return group.all_reduce(tensor.detach().clone(at::MemoryFormat::Contiguous), op).wait();
}

class Gather final : public torch::autograd::Function<Gather> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tensor, Group group) {
    context->saved_data["dim"] = tensor.dim();
    at::Tensor all = group.all_gather(tensor.detach().contiguous()).wait();
    context->saved_data["group"] = held(std::move(group));
    return all;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    Group group = group_of(*context);
    at::Tensor own = group.reduce_scatter(gradients[0].detach().contiguous()).wait();
    if (context->saved_data["dim"].toInt() == 0) {
      own = own.reshape({});
    }
    return {own, at::Tensor()};
  }

  /// Keeps a group in a context, which holds values of torch's types only.
  struct Held final : torch::CustomClassHolder {
    explicit Held(Group the_group) : group(std::move(the_group)) {}
    Group group;
  };
  static c10::IValue held(Group group) {
    return c10::IValue::make_capsule(c10::make_intrusive<Held>(std::move(group)));
  }
  static Group group_of(AutogradContext& context) {
    return c10::static_intrusive_pointer_cast<Held>(context.saved_data["group"].toCapsule())->group;
  }
};

class Reduce final : public torch::autograd::Function<Reduce> {
 public:
  static at::Tensor forward(
      AutogradContext* context, const at::Tensor& tensor, Group group, ReduceOp op) {
    at::Tensor result = all_reduced(group, tensor, op);
    if (op == ReduceOp::kMin || op == ReduceOp::kMax) {
      context->saved_data["has_result"] = tensor.detach().eq(result);
    }
    context->saved_data["averages"] = op == ReduceOp::kAvg;
    context->saved_data["group"] = Gather::held(std::move(group));
    return result;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const Group group = Gather::group_of(*context);
    const bool averages = context->saved_data["averages"].toBool();
    at::Tensor sum = all_reduced(group, gradients[0], averages ? ReduceOp::kAvg : ReduceOp::kSum);
    const auto found = context->saved_data.find("has_result");
    if (found != context->saved_data.end()) {
      const at::Tensor own = found->second.toTensor().to(sum.scalar_type());
      sum = sum.mul(own).div(all_reduced(group, own, ReduceOp::kSum));
    }
    return {sum, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor differentiable_gather(const Group& group, const at::Tensor& tensor) {
  return Gather::apply(tensor, group);
}

at::Tensor differentiable_reduce(const Group& group, const at::Tensor& tensor, ReduceOp op) {
  return Reduce::apply(tensor, group, op);
}

}  // namespace lockstep::internal
