// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace lockstep::schedule {

enum class PlateauMode { kMin, kMax };
enum class PlateauThreshold { kRelative, kAbsolute };

struct ReduceOnPlateauOptions {
  PlateauMode mode = PlateauMode::kMin;  ///< kMin: a lower metric is better.
  double factor = 0.1;                   ///< Below 1.
  int64_t patience = 10;                 ///< Tolerated bad steps; the next one reduces.
  double threshold = 1e-4;               ///< The smallest improvement that counts,
  PlateauThreshold threshold_mode = PlateauThreshold::kRelative;  ///< relative or absolute.
  int64_t cooldown = 0;              ///< Steps after a reduction whose bad ones do not count.
  std::vector<double> min_lr = {0};  ///< One for all parameter groups, or one for each.
  double eps = 1e-8;                 ///< Smaller reductions are omitted.
};

/// Lowers the learning rates when a metric stops improving: torch's ReduceLROnPlateau.
///
/// The object multiplies its own rates, where torch multiplies the optimizer's. So the next
/// reduction overwrites a rate that other code has set in the optimizer.
///
/// The rates depend on the metrics, so checkpoints need the state. The metric must be equal on all
/// ranks (a gathered one), or the ranks' rates diverge. A NaN is never better.
class ReduceOnPlateau {
 public:
  /// `lrs`: the optimizer's rates, one for each parameter group. Throws ConfigError for invalid
  /// options.
  explicit ReduceOnPlateau(std::vector<double> lrs, ReduceOnPlateauOptions options = {});

  /// Takes the metric of another step (usually an epoch) and returns the new rates.
  const std::vector<double>& step(double metric);
  const std::vector<double>& lrs() const { return lrs_; }

  /// Returns {"lr": [0.1], "best": 0.25, "bad_steps": 1, "cooldown_left": 0}. An infinite `best`,
  /// its initial value, is "inf" or "-inf".
  nlohmann::json state() const;
  /// Restores a result of `state`. Throws ConfigError, with nothing changed, for another value or
  /// number of groups.
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

/// Returns `options` for Accelerator::prepare, which knows the rates: `prepare(...,
/// schedule::reduce_on_plateau({}))`.
inline ReduceOnPlateauOptions reduce_on_plateau(ReduceOnPlateauOptions options) {
  return options;
}

}  // namespace lockstep::schedule
