// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace lockstep::schedule {

enum class PlateauMode { kMin, kMax };
enum class PlateauThreshold { kRelative, kAbsolute };

struct ReduceOnPlateauOptions {
  PlateauMode mode = PlateauMode::kMin;  ///< Whether a lower or a higher metric is better.
  double factor = 0.1;                   ///< Below 1.
  int64_t patience = 10;                 ///< Bad steps that are borne; the next one reduces.
  double threshold = 1e-4;               ///< How much better counts as better,
  PlateauThreshold threshold_mode = PlateauThreshold::kRelative;  ///< and of what.
  int64_t cooldown = 0;              ///< Steps after a reduction in which no bad one counts.
  std::vector<double> min_lr = {0};  ///< One for all parameter groups, or one for each.
  double eps = 1e-8;                 ///< A reduction by no more than that is not made.
};

/// Lowers the learning rates when a metric has stopped getting better: torch's ReduceLROnPlateau.
///
/// The rates are its own: it multiplies those it was given, where torch reads the optimizer's each
/// time. So a rate that something else sets in the optimizer is gone with the next reduction.
///
/// No function of the step, so it has state, which belongs into checkpoints. Feed it a metric that
/// is the same on every rank (a gathered one), or the ranks' rates part ways. A NaN is never
/// better. Thread safety: none.
class ReduceOnPlateau {
 public:
  /// `lrs`: the optimizer's rates, one a parameter group. ConfigError for options without sense.
  explicit ReduceOnPlateau(std::vector<double> lrs, ReduceOnPlateauOptions options = {});

  /// Takes the metric of another step (of an epoch, as a rule) and returns the rates from now on.
  const std::vector<double>& step(double metric);
  const std::vector<double>& lrs() const { return lrs_; }

  /// {"lr": [0.1], "best": 0.25, "bad_steps": 1, "cooldown_left": 0}; an infinite `best`, which is
  /// also how it begins, is "inf" or "-inf".
  nlohmann::json state() const;
  /// ConfigError, with nothing changed, for anything but what `state` gives for as many groups.
  void load_state(const nlohmann::json& state);

 private:
  bool better(double metric) const;
  void reduce();

  ReduceOnPlateauOptions options_;
  std::vector<double> lrs_;
  double best_;
  int64_t bad_steps_ = 0;
  int64_t cooldown_left_ = 0;
};

/// For Accelerator::prepare, which knows the rates: `prepare(...,
/// schedule::reduce_on_plateau({}))`.
inline ReduceOnPlateauOptions reduce_on_plateau(ReduceOnPlateauOptions options) {
  return options;
}

}  // namespace lockstep::schedule
