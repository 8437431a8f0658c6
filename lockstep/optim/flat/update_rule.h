// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

#include "lockstep/optim/flat/rule.h"

namespace lockstep::optim {

struct ShardedRuleCall;

/// An update rule behind torch's type of options. RuleAdapter (rule_optimizer.h) makes one from a
/// rule's static functions. Results depend on arguments only. Thread-safe.
class UpdateRule {
 public:
  using Options = torch::optim::OptimizerOptions;

  explicit UpdateRule(RuleTraits traits) : traits_(std::move(traits)) {}
  virtual ~UpdateRule() = default;
  UpdateRule(const UpdateRule&) = delete;
  UpdateRule& operator=(const UpdateRule&) = delete;

  const RuleTraits& traits() const { return traits_; }
  /// Returns pointers into `options`, which must be this rule's.
  virtual NamedOptions named_options(Options& options) const = 0;
  /// Throws ConfigError unless `options` are this rule's, and valid.
  virtual void check(const Options& options) const = 0;
  /// Returns the shape of `field` for a parameter of `sizes` with `options`. Throws ConfigError for
  /// a parameter that the rule cannot update.
  virtual StateShape shape(const Options& options, at::IntArrayRef sizes, size_t field) const = 0;
  /// Returns whether an update with `options` needs full parameters.
  virtual bool needs_full(const Options& options) const = 0;
  /// Returns the initial value of state field `field`.
  virtual double initial(const Options& options, size_t field) const = 0;
  /// Advances a parameter's `scalars`, empty at first, to `step`. Returns the factors for its
  /// update.
  virtual std::vector<double> advance(
      const Options& options, int64_t step, std::vector<float>& scalars) const = 0;
  /// Updates the tensors of `call` in place.
  virtual void update(const Options& options, const RuleCall& call) const = 0;
  /// Does the same for shard slices. Only if the rule needs full parameters. Collective.
  virtual void update_sharded(const Options& options, const ShardedRuleCall& call) const = 0;

 private:
  RuleTraits traits_;
};

}  // namespace lockstep::optim
