// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <nlohmann/json_fwd.hpp>

namespace lockstep {

/// How DeepSpeed's dynamic loss scale moves; names and defaults of ds_config.json's fp16 section.
struct DynamicLossScaleOptions {
  double init_scale = 65536;
  int64_t loss_scale_window = 1000;  ///< Clean updates in a row after which the scale doubles.
  int64_t hysteresis = 2;            ///< Overflows until it halves.
  bool consecutive_hysteresis = false;
  double min_loss_scale = 1;
  /// As DeepSpeed's optimizer of stage 0: every overflow halves, down to min_loss_scale, and the
  /// run goes on. Else, as with ZeRO: hysteresis counts, and an overflow at min_loss_scale ends the
  /// run.
  bool plain = false;
};

/// DeepSpeed's dynamic loss scale, to the step. Pure arithmetic; a value. Thread safety: none.
class DynamicLossScale {
 public:
  /// ConfigError for a window, hysteresis or scale that is not positive.
  explicit DynamicLossScale(const DynamicLossScaleOptions& options);

  double scale() const { return scale_; }
  /// After an update that was made, or left out for an overflow: the next scale. Error for an
  /// overflow at min_loss_scale, unless plain.
  double update(bool overflowed);

  nlohmann::json state() const;
  /// ConfigError for anything but a `state`.
  void load_state(const nlohmann::json& state);

 private:
  DynamicLossScaleOptions options_;
  double scale_;
  int64_t overflows_left_;
  int64_t updates_ = 0;
  int64_t last_overflow_ = -1;
};

}  // namespace lockstep
