// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/rules/mup.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <torch/nn/functional/linear.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/base/error.h"

namespace lockstep::optim {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw ConfigError("mup", what);
}

/// Returns the multipliers of a parameter's dimensions; none for a dimension that does not grow.
InfShape compared(
    const std::string& name,
    const std::vector<int64_t>& sizes,
    const std::vector<int64_t>& base,
    const std::vector<int64_t>& other) {
  if (sizes.size() != base.size() || sizes.size() != other.size()) {
    refuse(fmt::format(
        "parameter {} has shape [{}] in the model, [{}] in base and [{}] in delta (without one: in "
        "the model); expected the "
        "same number of dimensions; pass models that differ only in their width",
        name,
        fmt::join(sizes, ", "),
        fmt::join(base, ", "),
        fmt::join(other, ", ")));
  }
  InfShape shape;
  for (size_t i = 0; i < sizes.size(); ++i) {
    shape.multipliers.push_back(
        base[i] == other[i]
            ? std::nullopt
            : std::optional(static_cast<double>(sizes[i]) / static_cast<double>(base[i])));
  }
  return shape;
}

void check_names(const ParameterSizes& model, const ParameterSizes& other, const char* other_name) {
  const auto check = [&](const ParameterSizes& some, const ParameterSizes& all, const char* where) {
    for (const auto& [name, sizes] : some) {
      if (!all.contains(name)) {
        refuse(fmt::format(
            "{} has no parameter {}; expected the same names in the model and {}; pass models that "
            "differ only in their width",
            where,
            name,
            other_name));
      }
    }
  };
  check(model, other, other_name);
  check(other, model, "the model");
}

const InfShape& shape_of(const InfShapes& shapes, const std::string& name) {
  const auto found = shapes.find(name);
  if (found == shapes.end()) {
    refuse(fmt::format(
        "parameter {} has no shape; expected the shapes that set_base_shapes returned for the same "
        "model",
        name.empty() ? "without a name" : name));
  }
  return found->second;
}

/// Returns the multiplier of fan-in; 1 if it does not grow.
double fanin_mult(const InfShape& shape) {
  return shape.multipliers.size() < 2 ? 1 : shape.multipliers[1].value_or(1);
}

/// Returns a layer's weight by its module's name.
const InfShape& weight_shape(const InfShapes& shapes, const std::string& module) {
  return shape_of(shapes, module.empty() ? "weight" : module + ".weight");
}

void check_linear(const InfShape& shape, const std::string& name) {
  if (!shape.multipliers[0] && shape.multipliers[1]) {
    refuse(fmt::format(
        "{} is a Linear whose input grows with the width and whose output does not; replace it by "
        "a MuReadout, or let its output grow",
        name.empty() ? "the model" : name));
  }
}

/// Returns the bias of a linear layer or convolution; none for other modules.
std::optional<at::Tensor> bias_of(torch::nn::Module& module) {
  if (auto* linear = dynamic_cast<torch::nn::LinearImpl*>(&module)) {
    return linear->bias;
  }
  if (auto* conv = dynamic_cast<torch::nn::Conv1dImpl*>(&module)) {
    return conv->bias;
  }
  if (auto* conv = dynamic_cast<torch::nn::Conv2dImpl*>(&module)) {
    return conv->bias;
  }
  if (auto* conv = dynamic_cast<torch::nn::Conv3dImpl*>(&module)) {
    return conv->bias;
  }
  return std::nullopt;
}

/// Returns the factor of lr, whose inverse is that of weight decay.
double lr_factor_of(const InfShape& shape, MupScaling scaling) {
  if (shape.ninf() == 2) {
    return 1 /
           (scaling == MupScaling::kAdam ? shape.width_mult() : shape.fanin_fanout_mult_ratio());
  }
  return scaling == MupScaling::kAdam ? 1 : shape.width_mult();
}

}  // namespace

size_t InfShape::ninf() const {
  return static_cast<size_t>(
      std::ranges::count_if(multipliers, [](const auto& item) { return item.has_value(); }));
}

double InfShape::width_mult() const {
  const auto last = std::find_if(
      multipliers.rbegin(), multipliers.rend(), [](const auto& item) { return item.has_value(); });
  return last == multipliers.rend() ? 1 : **last;
}

double InfShape::fanin_fanout_mult_ratio() const {
  return fanin_mult(*this) / multipliers.at(0).value_or(1);
}

ParameterSizes sizes_of(const torch::nn::Module& model) {
  ParameterSizes sizes;
  for (const auto& item : model.named_parameters()) {
    sizes[item.key()] = item.value().sizes().vec();
  }
  return sizes;
}

InfShapes set_base_shapes(
    torch::nn::Module& model,
    const ParameterSizes& base,
    const ParameterSizes& delta,
    bool rescale_params) {
  const ParameterSizes sizes = sizes_of(model);
  check_names(sizes, base, "base");
  if (!delta.empty()) {
    check_names(sizes, delta, "delta");
  }
  InfShapes shapes;
  for (const auto& [name, of_model] : sizes) {
    const auto& of_base = base.at(name);
    shapes[name] = compared(name, of_model, of_base, delta.empty() ? of_model : delta.at(name));
  }
  // All is checked before anything is changed.
  std::vector<std::pair<MuReadoutImpl*, double>> readouts;
  std::vector<std::pair<at::Tensor, double>> biases;
  const auto look_at = [&](const std::string& name, torch::nn::Module& module) {
    if (auto* readout = dynamic_cast<MuReadoutImpl*>(&module)) {
      if (rescale_params && readout->is_rescaled()) {
        refuse(
            "a MuReadout is already rescaled; call set_base_shapes once for a model, and "
            "afterwards with rescale_params = false");
      }
      readouts.emplace_back(readout, weight_shape(shapes, name).width_mult());
      return;
    }
    const std::optional<at::Tensor> bias = bias_of(module);
    if (!bias) {
      return;
    }
    const InfShape& weight = weight_shape(shapes, name);
    if (dynamic_cast<torch::nn::LinearImpl*>(&module) != nullptr) {
      check_linear(weight, name);
    }
    if (bias->defined()) {
      biases.emplace_back(*bias, std::sqrt(fanin_mult(weight)));
    }
  };
  look_at("", model);
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    look_at(item.key(), *item.value());
  }
  const c10::AutoGradMode no_grad(false);
  for (const auto& [readout, width_mult] : readouts) {
    readout->set_width_mult(width_mult);
    if (rescale_params) {
      readout->rescale_parameters();
    }
  }
  for (const auto& [bias, factor] : biases) {
    if (rescale_params) {
      bias.mul_(factor);
    }
  }
  return shapes;
}

InfShapes set_base_shapes(
    torch::nn::Module& model,
    const torch::nn::Module& base,
    const torch::nn::Module& delta,
    bool rescale_params) {
  return set_base_shapes(model, sizes_of(base), sizes_of(delta), rescale_params);
}

std::vector<MupGroup> mup_groups(
    const NamedTensors& parameters,
    const InfShapes& shapes,
    MupScaling scaling,
    bool decoupled_wd) {
  std::vector<MupGroup> matrices;
  std::vector<MupGroup> others;
  std::vector<const at::TensorImpl*> seen;
  for (const NamedTensor& item : parameters) {
    const at::TensorImpl* const identity = item.tensor.unsafeGetTensorImpl();
    if (!item.tensor.requires_grad() || std::ranges::find(seen, identity) != seen.end()) {
      continue;
    }
    seen.push_back(identity);
    const InfShape& shape = shape_of(shapes, item.name);
    if (shape.ninf() > 2) {
      refuse(fmt::format(
          "parameter {} has {} dimensions that grow with the width; muP supports at most two",
          item.name,
          shape.ninf()));
    }
    std::vector<MupGroup>& groups = shape.ninf() == 2 ? matrices : others;
    const double factor = lr_factor_of(shape, scaling);
    auto found = std::ranges::find(groups, factor, &MupGroup::lr_factor);
    if (found == groups.end()) {
      groups.push_back({{}, factor, decoupled_wd ? 1 : 1 / factor});
      found = groups.end() - 1;
    }
    found->parameters.push_back(item.tensor);
  }
  matrices.insert(matrices.end(), others.begin(), others.end());
  return matrices;
}

MuReadoutImpl::MuReadoutImpl(int64_t in_features, int64_t out_features, MuReadoutOptions options)
    : in_features_(in_features), out_features_(out_features), options_(options) {
  MuReadoutImpl::reset();
}

void MuReadoutImpl::reset() {
  weight = register_parameter("weight", at::empty({out_features_, in_features_}));
  bias = register_parameter(
      "bias", options_.bias ? at::empty({out_features_}) : at::Tensor(), options_.bias);
  const c10::AutoGradMode no_grad(false);
  if (options_.readout_zero_init) {
    weight.zero_();
    if (bias.defined()) {
      bias.zero_();
    }
    return;
  }
  torch::nn::init::kaiming_uniform_(weight, std::sqrt(5));
  if (bias.defined()) {
    const double bound = 1 / std::sqrt(static_cast<double>(in_features_));
    torch::nn::init::uniform_(bias, -bound, bound);
  }
}

at::Tensor MuReadoutImpl::forward(const at::Tensor& input) {
  if (!width_mult_) {
    refuse("MuReadout has no width multiplier yet; call optim::set_base_shapes first");
  }
  const at::Tensor tuned = options_.output_mult == 1 ? input : input * options_.output_mult;
  return torch::nn::functional::linear(tuned / *width_mult_, weight, bias);
}

void MuReadoutImpl::rescale_parameters() {
  const c10::AutoGradMode no_grad(false);
  const double factor = std::sqrt(width_mult_.value_or(1));
  weight.mul_(factor);
  if (bias.defined()) {
    bias.mul_(factor);
  }
  rescaled_ = true;
}

}  // namespace lockstep::optim
