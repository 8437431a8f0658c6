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

/// Maximal update parametrization (muP). Learning rates that suit a narrow model suit a wide one,
/// too, so they can be tuned on the narrow one.
///
///     Net net(2048), base(256), delta(512);  // The width is what base and delta differ in.
///     const auto shapes = optim::set_base_shapes(*net, *base, *delta);
///     optim::AdamW optimizer(optim::with_options(
///         optim::mup_groups(named, shapes, optim::MupScaling::kAdam), optim::AdamWOptions{...}));
///
/// The model's last layer must be a MuReadout, which divides its output by the width multiplier.
/// Other layers are initialized as torch's are, or by hand with a standard deviation of
/// 1 / sqrt(fan-in). Attention must divide by the head's size, not by its root.
///
/// Thread safety: none. Modelled on Yang & Hu et al., "Tensor Programs V", 2022, by the rules of
/// the Python package mup 1.0, whose names these are.
namespace lockstep::optim {

/// One parameter's dimensions, compared with the base model's.
struct InfShape {
  /// [dimension] Length over the base model's, if it grows with the width ("infinite").
  std::vector<std::optional<double>> multipliers;

  /// Returns how many dimensions grow: 2 of a hidden matrix, 1 of a bias or embedding.
  size_t ninf() const;
  /// Returns the multiplier of the last dimension that grows, a matrix's fan-in; 1 if none does.
  double width_mult() const;
  /// Returns fan-in's multiplier over fan-out's, dimensions 1 and 0.
  double fanin_fanout_mult_ratio() const;
};

/// By the names of parameters.
using InfShapes = std::map<std::string, InfShape>;
using ParameterSizes = std::map<std::string, std::vector<int64_t>>;

/// Returns the sizes of all parameters, the form in which set_base_shapes takes a base model.
ParameterSizes sizes_of(const torch::nn::Module& model);

/// Compares `model` with a narrow one, `base`. Dimensions grow if `delta`, of another width than
/// the base, differs from it in them; without `delta`, if the model does. Then turns torch's
/// initialization into muP's: a MuReadout's parameters times sqrt(its multiplier), biases of linear
/// layers and convolutions times sqrt(fan-in's). Pass `rescale_params` false if a checkpoint will
/// be loaded. Call it once for a model, before its optimizer is constructed.
///
/// Throws ConfigError for models with different parameters, for a MuReadout that is already
/// rescaled, and for a linear layer whose input grows and whose output does not.
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

/// The scaling rule of an optimizer; m is the width multiplier.
enum class MupScaling {
  kAdam,  ///< lr / m and weight decay * m for matrices. Also for Lion, Adagrad, RMSprop.
  /// lr * m and weight decay / m for vectors; lr / r and weight decay * r for matrices. r is
  /// fan-in's multiplier over fan-out's.
  kSgd
};

/// Parameters with the same factors.
struct MupGroup {
  std::vector<at::Tensor> parameters;
  double lr_factor = 1;
  double weight_decay_factor = 1;
};

/// Returns groups with matrices first, in the order of their first parameters. Frozen parameters
/// are omitted, and a parameter with several names counts once. `decoupled_wd` keeps weight decay
/// unscaled. Throws ConfigError for a parameter without a shape, or with more than two dimensions
/// that grow.
std::vector<MupGroup> mup_groups(
    const NamedTensors& parameters,
    const InfShapes& shapes,
    MupScaling scaling,
    bool decoupled_wd = false);

/// Returns the groups with the base model's `options`, scaled.
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
  double output_mult = 1;          ///< A factor of the input, tuned on the narrow model.
};

/// A linear layer from the width to a dimension that does not grow, such as logits. Maps [..., in]
/// to [..., out], after scaling the input by output_mult / width multiplier. Initialized as
/// torch::nn::Linear is.
class MuReadoutImpl : public torch::nn::Cloneable<MuReadoutImpl> {
 public:
  MuReadoutImpl(int64_t in_features, int64_t out_features, MuReadoutOptions options = {});
  void reset() override;
  /// Throws ConfigError before set_base_shapes.
  at::Tensor forward(const at::Tensor& input);

  bool is_rescaled() const { return rescaled_; }
  /// For set_base_shapes. Rescale once.
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
