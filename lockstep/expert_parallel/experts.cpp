// SPDX-License-Identifier: Apache-2.0
#include "lockstep/expert_parallel/experts.h"

#include <utility>

#include <ATen/autocast_mode.h>
#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include "lockstep/base/error.h"

namespace lockstep::nn {

SwiGLUImpl::SwiGLUImpl(int64_t hidden_size, int64_t intermediate_size)
    : hidden_size_(hidden_size), intermediate_size_(intermediate_size) {
  SwiGLUImpl::reset();
}

void SwiGLUImpl::reset() {
  const auto linear = [](int64_t in, int64_t out) {
    return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false));
  };
  w1 = register_module("w1", linear(hidden_size_, intermediate_size_));
  w2 = register_module("w2", linear(intermediate_size_, hidden_size_));
  w3 = register_module("w3", linear(hidden_size_, intermediate_size_));
}

at::Tensor SwiGLUImpl::forward(const at::Tensor& input) {
  return w2(at::silu(w1(input)) * w3(input));
}

}  // namespace lockstep::nn

namespace lockstep::expert_parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::ScalarType computed_dtype(const at::Tensor& weight) {
  const at::DeviceType device = weight.device().type();
  return at::autocast::is_autocast_enabled(device) ? at::autocast::get_autocast_dtype(device)
                                                   : weight.scalar_type();
}

/// Returns the weights as [groups, out, in] in the dtype of `rows`.
at::Tensor stacked(at::TensorList weights, const at::Tensor& rows) {
  return at::stack(weights).to(rows.scalar_type());
}

/// Returns `matrix` with the strides of a new one. contiguous() keeps any strides if the matrix has
/// one row or none, and _grouped_mm refuses those of an expanded gradient.
at::Tensor row_major(const at::Tensor& matrix) {
  const bool is_row_major = matrix.stride(0) == matrix.size(1) && matrix.stride(1) == 1;
  return is_row_major ? matrix : matrix.clone(at::MemoryFormat::Contiguous);
}

struct GroupedLinear : torch::autograd::Function<GroupedLinear> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& rows,
      const at::Tensor& ends,
      at::TensorList weights) {
    variable_list saved{rows, ends};
    saved.insert(saved.end(), weights.begin(), weights.end());
    context->save_for_backward(std::move(saved));
    return at::_grouped_mm(rows, stacked(weights, rows).transpose(1, 2), ends);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    if (c10::GradMode::is_enabled()) {
      throw ConfigError(
          "grouped_linear",
          "grouped experts do not support gradients of gradients; got a backward with "
          "create_graph, expected one without; set MoEOptions::grouped_mm to false");
    }
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& rows = saved[0];
    const at::Tensor& ends = saved[1];
    const at::TensorList weights = at::TensorList(saved).slice(2);
    const at::Tensor gradient = row_major(gradients[0]);
    variable_list result(saved.size());
    if (context->needs_input_grad(0)) {
      result[0] = at::_grouped_mm(gradient, stacked(weights, rows), ends);
    }
    at::Tensor all;  // [groups, out, in]
    for (size_t i = 0; i < weights.size(); ++i) {
      if (context->needs_input_grad(i + 2)) {
        if (!all.defined()) {
          all = at::_grouped_mm(gradient.t(), rows, ends);
        }
        result[i + 2] = all[static_cast<int64_t>(i)].to(weights[i].scalar_type());
      }
    }
    return result;
  }
};

std::vector<at::Tensor> weights_of(
    const std::vector<nn::SwiGLU>& experts, torch::nn::Linear nn::SwiGLUImpl::*layer) {
  std::vector<at::Tensor> weights;
  for (const nn::SwiGLU& expert : experts) {
    weights.push_back(((*expert).*layer)->weight);
  }
  return weights;
}

}  // namespace

bool can_group(const at::Tensor& rows, const at::Tensor& weight) {
  const at::ScalarType dtype = computed_dtype(weight);
  const bool fits = rows.is_cuda() ? dtype == at::kBFloat16
                                   : rows.is_cpu() && (dtype == at::kFloat || dtype == at::kHalf ||
                                                       dtype == at::kBFloat16);
  const auto aligned = [dtype](int64_t numbers) {
    return numbers * static_cast<int64_t>(c10::elementSize(dtype)) % 16 == 0;
  };
  return fits && rows.is_floating_point() && weight.device() == rows.device() &&
         aligned(weight.size(0)) && aligned(weight.size(1)) &&
         (rows.scalar_type() == weight.scalar_type() || dtype != weight.scalar_type());
}

at::Tensor grouped_linear(
    const at::Tensor& rows,
    const std::vector<at::Tensor>& weights,
    const std::vector<int64_t>& counts) {
  std::vector<int32_t> ends;
  int64_t end = 0;
  for (const int64_t count : counts) {
    end += count;
    ends.push_back(static_cast<int32_t>(end));
  }
  const at::TensorList list = weights;
  return GroupedLinear::apply(
      row_major(rows.to(computed_dtype(weights[0]))),
      at::tensor(ends, at::kInt).to(rows.device()),
      list);
}

at::Tensor grouped_forward(
    const std::vector<nn::SwiGLU>& experts,
    const at::Tensor& rows,
    const std::vector<int64_t>& counts) {
  using nn::SwiGLUImpl;
  const at::Tensor gate = grouped_linear(rows, weights_of(experts, &SwiGLUImpl::w1), counts);
  const at::Tensor up = grouped_linear(rows, weights_of(experts, &SwiGLUImpl::w3), counts);
  return grouped_linear(at::silu(gate) * up, weights_of(experts, &SwiGLUImpl::w2), counts);
}

}  // namespace lockstep::expert_parallel
