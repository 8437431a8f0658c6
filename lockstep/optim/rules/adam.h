// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "lockstep/optim/rule_optimizer.h"

namespace lockstep::optim {

/// The names and defaults are torch.optim.Adam's; one option is DeepSpeed's.
struct AdamOptions {
  double lr = 1e-3;
  std::pair<double, double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;  ///< Added to the gradient.
  bool amsgrad = false;
  bool maximize = false;
  bool bias_correction = true;  ///< DeepSpeed's; false: moments are not corrected.
  bool capturable = false;      ///< See FlatOptimizer.
};

/// The names and defaults are torch.optim.AdamW's; one option is DeepSpeed's.
struct AdamWOptions {
  double lr = 1e-3;
  std::pair<double, double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 1e-2;  ///< Taken from the parameter, times lr.
  bool amsgrad = false;
  bool maximize = false;
  bool bias_correction = true;  ///< DeepSpeed's; false: moments are not corrected.
  bool capturable = false;      ///< See FlatOptimizer.
};

/// Adam, one pass over memory by libtorch's fused kernel. Modelled on Kingma & Ba, "Adam", ICLR
/// 2015; Reddi et al. (amsgrad), ICLR 2018.
struct AdamRule {
  using Options = AdamOptions;
  static RuleTraits traits();
  static NamedOptions named(Options& options);
  static void check(const Options& options);
  static StateShape shape(const Options& options, at::IntArrayRef sizes, size_t field);
  static void update(const Options& options, const RuleCall& call);
};

/// Adam with decoupled weight decay. Modelled on Loshchilov & Hutter, "Decoupled Weight Decay
/// Regularization", ICLR 2019.
struct AdamWRule {
  using Options = AdamWOptions;
  static RuleTraits traits();
  static NamedOptions named(Options& options);
  static void check(const Options& options);
  static StateShape shape(const Options& options, at::IntArrayRef sizes, size_t field);
  static void update(const Options& options, const RuleCall& call);
};

using Adam = RuleOptimizer<AdamRule>;
using AdamW = RuleOptimizer<AdamWRule>;

}  // namespace lockstep::optim
