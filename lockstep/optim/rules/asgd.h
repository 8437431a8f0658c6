// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/optim/rule_optimizer.h"

namespace lockstep::optim {

/// The names and defaults are torch.optim.ASGD's.
struct ASGDOptions {
  double lr = 1e-2;
  double lambd = 1e-4;  ///< Decays the parameter, times the rate; slows the rate down, too.
  double alpha = 0.75;  ///< The rate falls as (1 + lambd lr step)^-alpha.
  double t0 = 1e6;      ///< The step from which on `ax` is an average, not the parameter.
  double weight_decay = 0;
  bool maximize = false;
};

/// Stochastic gradient descent that averages the parameters in its state `ax`, for the program's
/// use. A changed learning rate applies from the second step after, as in torch.optim. Not
/// capturable, since the host computes the rate from lr. Modelled on Polyak & Juditsky,
/// "Acceleration of stochastic approximation by averaging", 1992.
struct ASGDRule {
  using Options = ASGDOptions;
  static RuleTraits traits();
  static NamedOptions named(Options& options);
  static void check(const Options& options);
  /// Scalars: the next update's rate, and the weight of a new parameter in the average.
  static std::vector<double> advance(
      const Options& options, int64_t step, std::vector<float>& scalars);
  static void update(const Options& options, const RuleCall& call);
};

using ASGD = RuleOptimizer<ASGDRule>;

}  // namespace lockstep::optim
