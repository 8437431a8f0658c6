// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <nlohmann/json_fwd.hpp>

namespace lockstep {

/// Options of DeepSpeed's dynamic loss scale; names and defaults of ds_config.json's fp16 section.
struct DynamicLossScaleOptions {
  double init_scale = 65536;
  /// Consecutive updates without overflow after which the scale doubles.
  int64_t loss_scale_window = 1000;
  int64_t hysteresis = 2;  ///< Overflows until the scale halves.
  bool consecutive_hysteresis = false;
  double min_loss_scale = 1;
  /// True: as DeepSpeed's stage 0 optimizer, every overflow halves, down to min_loss_scale, and the
  /// run continues. False: as with ZeRO, hysteresis counts, and an overflow at min_loss_scale ends
  /// the run.
  bool plain = false;
  /// As torch's GradScaler: the scale doubles with the last update of a window, not with the next
  /// one. With `plain`.
  bool as_torch = false;
};

/// DeepSpeed's dynamic loss scale, exact to the step. Pure arithmetic; a value.
class DynamicLossScale {
 public:
  /// Throws ConfigError for a window, hysteresis or scale that is not positive.
  explicit DynamicLossScale(const DynamicLossScaleOptions& options);

  double scale() const { return scale_; }
  /// Returns the next scale after an update was applied or skipped for an overflow. Throws
  /// Error for an overflow at min_loss_scale, unless plain.
  double update(bool overflowed);

  nlohmann::json state() const;
  /// Throws ConfigError for anything but the result of `state`.
  void load_state(const nlohmann::json& state);

 private:
  DynamicLossScaleOptions options_;
  double scale_;
  int64_t overflows_left_;
  int64_t updates_ = 0;
  int64_t last_overflow_ = -1;
};

}  // namespace lockstep
