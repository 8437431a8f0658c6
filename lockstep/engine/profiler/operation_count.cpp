// SPDX-License-Identifier: Apache-2.0
// Counts the arithmetic of an operation from the shapes of its inputs.
#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>

#include "lockstep/engine/profiler/flops_counter.h"

namespace lockstep {
namespace {

using Inputs = c10::ArrayRef<const c10::IValue>;

/// Returns null if the operation has no such tensor.
const at::Tensor* tensor_at(Inputs inputs, size_t index) {
  if (index >= inputs.size() || !inputs[index].isTensor() || !inputs[index].toTensor().defined()) {
    return nullptr;
  }
  return &inputs[index].toTensor();
}

double elements(const at::Tensor& tensor) {
  return static_cast<double>(tensor.numel());
}

OperationCount products(double macs) {
  return {.count = 1, .macs = macs, .flops = 2 * macs};
}

OperationCount per_element(double flops) {
  return {.count = 1, .flops = flops};
}

/// Counts the matrix product of inputs `first` and `first + 1`.
std::optional<OperationCount> matrix_product(Inputs inputs, size_t first) {
  const at::Tensor* const a = tensor_at(inputs, first);
  const at::Tensor* const b = tensor_at(inputs, first + 1);
  if (a == nullptr || b == nullptr || a->dim() < 1 || b->dim() < 1) {
    return std::nullopt;
  }
  const int64_t columns = b->dim() == 1 ? 1 : b->size(-1);
  return products(elements(*a) * static_cast<double>(columns));
}

double spatial(const at::Tensor& tensor) {
  double all = 1;
  for (int64_t i = 2; i < tensor.dim(); ++i) {
    all *= static_cast<double>(tensor.size(i));
  }
  return all;
}

/// Counts aten::convolution(input, weight, bias, stride, padding, dilation, transposed, ...).
std::optional<OperationCount> convolution(Inputs inputs) {
  const at::Tensor* const input = tensor_at(inputs, 0);
  const at::Tensor* const weight = tensor_at(inputs, 1);
  if (input == nullptr || weight == nullptr || inputs.size() < 7 || !inputs[3].isIntList() ||
      !inputs[6].isBool() || input->dim() != weight->dim()) {
    return std::nullopt;
  }
  const auto batch = static_cast<double>(input->size(0));
  if (inputs[6].toBool()) {  // Each element of the input uses the full kernel.
    return products(batch * spatial(*input) * elements(*weight));
  }
  const auto value_at = [&](size_t index, size_t dim) {
    const auto values = inputs[index].toIntVector();
    return values[values.size() == 1 ? 0 : dim];  // A single value is for all dimensions.
  };
  double positions = 1;
  for (size_t dim = 0; dim + 2 < static_cast<size_t>(input->dim()); ++dim) {
    const auto axis = static_cast<int64_t>(dim) + 2;
    const int64_t kernel = value_at(5, dim) * (weight->size(axis) - 1) + 1;
    const int64_t last = input->size(axis) + 2 * value_at(4, dim) - kernel;
    const int64_t outputs = last / value_at(3, dim) + 1;
    positions *= static_cast<double>(outputs);
  }
  return products(batch * positions * elements(*weight));
}

/// Counts two matrix products, for queries (..., L, E), keys (..., S, E), values (..., S, Ev).
std::optional<OperationCount> attention(Inputs inputs) {
  const at::Tensor* const query = tensor_at(inputs, 0);
  const at::Tensor* const key = tensor_at(inputs, 1);
  const at::Tensor* const value = tensor_at(inputs, 2);
  if (query == nullptr || key == nullptr || value == nullptr || query->dim() < 2 ||
      key->dim() < 2 || value->dim() < 2) {
    return std::nullopt;
  }
  const double rows = elements(*query) / static_cast<double>(query->size(-1));
  return products(
      rows * static_cast<double>(key->size(-2)) *
      static_cast<double>(query->size(-1) + value->size(-1)));
}

/// Counts the products of each step of an input (steps, batch, features) with the weights.
std::optional<OperationCount> recurrent(Inputs inputs) {
  const at::Tensor* const input = tensor_at(inputs, 0);
  if (input == nullptr || input->dim() != 3) {
    return std::nullopt;
  }
  std::vector<at::Tensor> weights;
  if (inputs.size() > 1 && inputs[1].isTensorList()) {
    weights = inputs[1].toTensorVector();
  } else {
    for (size_t i = 1; i < std::min<size_t>(inputs.size(), 3); ++i) {
      if (const at::Tensor* const weight = tensor_at(inputs, i)) {
        weights.push_back(*weight);
      }
    }
  }
  double each_step = 0;
  for (const at::Tensor& weight : weights) {
    each_step += weight.dim() == 2 ? elements(weight) : 0;
  }
  return products(static_cast<double>(input->size(0) * input->size(1)) * each_step);
}

std::optional<OperationCount> normalisation(Inputs inputs) {
  const at::Tensor* const input = tensor_at(inputs, 0);
  if (input == nullptr) {
    return std::nullopt;
  }
  bool has_weight = false;
  for (size_t i = 1; i < std::min<size_t>(inputs.size(), 3); ++i) {
    has_weight = has_weight || tensor_at(inputs, i) != nullptr;
  }
  return per_element(elements(*input) * (has_weight ? 5 : 4));
}

std::optional<OperationCount> per_input_element(Inputs inputs) {
  const at::Tensor* const input = tensor_at(inputs, 0);
  return input == nullptr ? std::nullopt : std::optional(per_element(elements(*input)));
}

/// Counts one for each element of the result, to which all tensors are broadcast.
std::optional<OperationCount> per_output_element(Inputs inputs) {
  std::vector<int64_t> sizes;
  bool any = false;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (const at::Tensor* const tensor = tensor_at(inputs, i)) {
      sizes = at::infer_size(sizes, tensor->sizes());
      any = true;
    }
  }
  return any ? std::optional(per_element(
                   static_cast<double>(c10::multiply_integers(sizes.begin(), sizes.end()))))
             : std::nullopt;
}

using Rule = std::function<std::optional<OperationCount>(Inputs)>;

std::map<std::string, Rule> make_rules() {
  std::map<std::string, Rule> rules;
  const auto add = [&](const std::vector<const char*>& names, const Rule& rule) {
    for (const char* name : names) {
      rules.emplace(name, rule);
    }
  };
  add({"mm", "bmm", "mv", "dot", "vdot"}, [](Inputs inputs) { return matrix_product(inputs, 0); });
  add({"addmm", "_addmm_activation", "baddbmm", "addbmm", "addmv"},
      [](Inputs inputs) { return matrix_product(inputs, 1); });
  add({"convolution", "convolution_overrideable"}, convolution);
  add({"_scaled_dot_product_flash_attention_for_cpu",
       "_scaled_dot_product_flash_attention",
       "_scaled_dot_product_efficient_attention",
       "_scaled_dot_product_cudnn_attention",
       "_scaled_dot_product_fused_attention_overrideable"},
      attention);
  add({"mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn"}, recurrent);
  add({"native_layer_norm",
       "native_group_norm",
       "native_batch_norm",
       "cudnn_batch_norm",
       "miopen_batch_norm",
       "_native_batch_norm_legit",
       "_batch_norm_with_update"},
      normalisation);
  add({"_softmax",
       "_log_softmax",
       "_safe_softmax",
       "logsumexp",
       "sum",
       "mean",
       "prod",
       "var",
       "std",
       "amax",
       "amin",
       "cumsum",
       "linalg_vector_norm",
       "avg_pool2d",
       "avg_pool3d",
       "_adaptive_avg_pool2d",
       "_adaptive_avg_pool3d",
       "adaptive_max_pool2d",
       "max_pool2d_with_indices",
       "max_pool3d_with_indices",
       "mkldnn_max_pool2d"},
      per_input_element);
  add({"abs",         "acos",          "add",
       "addcdiv",     "addcmul",       "asin",
       "atan",        "atan2",         "clamp",
       "clamp_max",   "clamp_min",     "cos",
       "cosh",        "div",           "elu",
       "erf",         "exp",           "expm1",
       "fmod",        "gelu",          "hardshrink",
       "hardsigmoid", "hardswish",     "hardtanh",
       "leaky_relu",  "lerp",          "log",
       "log10",       "log1p",         "log2",
       "logaddexp",   "maximum",       "minimum",
       "mish",        "mul",           "native_dropout",
       "neg",         "pow",           "reciprocal",
       "relu",        "remainder",     "rsqrt",
       "rsub",        "sigmoid",       "silu",
       "sin",         "sinh",          "softplus",
       "softshrink",  "sqrt",          "sub",
       "tan",         "tanh",          "threshold",
       "where",       "_prelu_kernel", "log_sigmoid_forward"},
      per_output_element);
  return rules;
}

}  // namespace

std::optional<OperationCount> operation_count(const std::string& name, Inputs inputs) {
  static const std::map<std::string, Rule> rules = make_rules();
  auto found = rules.find(name);
  if (found == rules.end() && name.ends_with('_')) {  // In place.
    found = rules.find(name.substr(0, name.size() - 1));
  }
  return found == rules.end() ? std::nullopt : found->second(inputs);
}

}  // namespace lockstep
