// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <torch/nn/cloneable.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/optim/rule_optimizer.h"

/// Maximal update parametrization: learning rates, and the size of what a model computes, that
/// suit a narrow model suit a wide one, too, so that they can be found on the narrow one.
///
///     Net net(2048), base(256), delta(512);  // The width is what base and delta differ in.
///     const auto shapes = optim::set_base_shapes(*net, *base, *delta);
///     optim::AdamW optimizer(optim::with_options(
///         optim::mup_groups(named, shapes, optim::MupScaling::kAdam), optim::AdamWOptions{...}));
///
/// Which needs of the model: its last layer is a MuReadout (whose output is divided by how much
/// wider the model is), other layers are initialized as torch's are, or by hand with a standard
/// deviation of 1 / sqrt(fan-in), and attention divides by the head's size, not by its root.
///
/// Thread safety: none. After Yang & Hu et al., "Tensor Programs V", 2022, by the rules of the
/// Python package mup 1.0, whose names these are.
namespace lockstep::optim {

/// How one parameter's dimensions compare with the base model's.
struct InfShape {
  /// [dimension] How many times as long, of those that grow with the width ("infinite" ones).
  std::vector<std::optional<double>> multipliers;

  /// Dimensions that grow: 2 of a matrix between hidden layers, 1 of a bias or embedding.
  size_t ninf() const;
  /// Of the last dimension that grows, which is a matrix's fan-in; 1 if none does.
  double width_mult() const;
  /// Fan-in's multiplier over fan-out's, dimensions 1 and 0.
  double fanin_fanout_mult_ratio() const;
};

/// By the names of parameters.
using InfShapes = std::map<std::string, InfShape>;
using ParameterSizes = std::map<std::string, std::vector<int64_t>>;

/// What set_base_shapes wants of a base model that need not be kept.
ParameterSizes sizes_of(const torch::nn::Module& model);

/// Compares `model` with a narrow one, `base`. Dimensions that grow are those in which `delta`, of
/// another width than the base, differs from it; without one, those in which the model does. Then
/// makes torch's initialization muP's, unless `rescale_params` is false, which it is to be where a
/// checkpoint will be loaded: a MuReadout's parameters times sqrt(its multiplier), biases of linear
/// layers and convolutions times sqrt(fan-in's). Once a model, before its optimizer is made.
///
/// ConfigError for models that have not the same parameters, for a linear layer that leads from a
/// dimension that grows to one that does not and is no MuReadout, for a MuReadout rescaled before.
InfShapes set_base_shapes(
    torch::nn::Module& model,
    const ParameterSizes& base,
    const ParameterSizes& delta = {},
    bool rescale_params = true);
InfShapes set_base_shapes(
    torch::nn::Module& model,
    const torch::nn::Module& base,
    const torch::nn::Module& delta,
    bool rescale_params = true);

/// Which optimizers' rule: with m the width multiplier,
enum class MupScaling {
  kAdam,  ///< lr / m and weight decay * m for matrices. Lion, Adagrad, RMSprop go by it, too.
  /// lr * m and weight decay / m for vectors; lr / r and weight decay * r for matrices, r being
  /// fan-in's multiplier over fan-out's.
  kSgd
};

/// Parameters with the same factors.
struct MupGroup {
  std::vector<at::Tensor> parameters;
  double lr_factor = 1;
  double weight_decay_factor = 1;
};

/// Matrices first, in the order of the first of each group. Frozen ones are left out, and one of
/// several names counts once. `decoupled_wd` leaves weight decay alone. ConfigError for a parameter
/// without a shape, or with more than two dimensions that grow.
std::vector<MupGroup> mup_groups(
    const NamedTensors& parameters,
    const InfShapes& shapes,
    MupScaling scaling,
    bool decoupled_wd = false);

/// The groups as an optimizer takes them: `options` of a base model's, scaled.
template <typename Options>
std::vector<ParameterGroup<Options>> with_options(
    const std::vector<MupGroup>& groups, const Options& options) {
  std::vector<ParameterGroup<Options>> all;
  for (const MupGroup& group : groups) {
    all.push_back({group.parameters, options});
    all.back().options.lr *= group.lr_factor;
    all.back().options.weight_decay *= group.weight_decay_factor;
  }
  return all;
}

struct MuReadoutOptions {
  bool bias = true;
  bool readout_zero_init = false;  ///< Weight and bias begin at 0, which muP recommends.
  double output_mult = 1;          ///< Of what comes in; to be tuned, on the narrow model.
};

/// A linear layer from the width to something that does not grow, as logits are: [..., in] to
/// [..., out], of output_mult * input / width multiplier. Initialized as torch::nn::Linear is.
class MuReadoutImpl : public torch::nn::Cloneable<MuReadoutImpl> {
 public:
  MuReadoutImpl(int64_t in_features, int64_t out_features, MuReadoutOptions options = {});
  void reset() override;
  /// ConfigError before set_base_shapes.
  at::Tensor forward(const at::Tensor& input);

  bool is_rescaled() const { return rescaled_; }
  /// What set_base_shapes does. Rescaling is for once.
  void set_width_mult(double width_mult) { width_mult_ = width_mult; }
  void rescale_parameters();

  at::Tensor weight;  ///< [out, in]
  at::Tensor bias;    ///< [out], or undefined.

 private:
  int64_t in_features_;
  int64_t out_features_;
  MuReadoutOptions options_;
  std::optional<double> width_mult_;
  bool rescaled_ = false;
};
TORCH_MODULE(MuReadout);

}  // namespace lockstep::optim
