// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/values/differentiable.h"

#include <utility>

#include <torch/csrc/autograd/custom_function.h>

#include "lockstep/comm/autograd_group.h"

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
    context->saved_data["group"] = comm::to_ivalue(std::move(group));
    return all;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    Group group = comm::to_group(context->saved_data["group"]);
    at::Tensor own = group.reduce_scatter(gradients[0].detach().contiguous()).wait();
    if (context->saved_data["dim"].toInt() == 0) {
      own = own.reshape({});
    }
    return {own, at::Tensor()};
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
    context->saved_data["group"] = comm::to_ivalue(std::move(group));
    return result;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const Group group = comm::to_group(context->saved_data["group"]);
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
