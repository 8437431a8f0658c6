// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/state/loss_scale.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"

namespace lockstep {

DynamicLossScale::DynamicLossScale(const DynamicLossScaleOptions& options)
    : options_(options), scale_(options.init_scale), overflows_left_(options.hysteresis) {
  if (options.loss_scale_window < 1 || options.hysteresis < 1 || !(options.init_scale > 0) ||
      !(options.min_loss_scale > 0)) {
    throw ConfigError(
        "loss scale",
        fmt::format(
            "options must be above 0; got init_scale {}, loss_scale_window {}, hysteresis {}, "
            "min_loss_scale {}",
            options.init_scale,
            options.loss_scale_window,
            options.hysteresis,
            options.min_loss_scale));
  }
}

double DynamicLossScale::update(bool overflowed) {
  if (overflowed) {
    if (options_.plain || options_.hysteresis == 1 || overflows_left_ == 1) {
      if (!options_.plain && scale_ == options_.min_loss_scale) {
        throw Error(
            "loss scale",
            fmt::format(
                "gradients overflowed with the scale at its minimum, {}; the loss diverges, or the "
                "range of fp16 is too small; try bf16, a smaller learning rate, or a smaller "
                "min_loss_scale",
                scale_));
      }
      scale_ = std::max(scale_ / 2, options_.min_loss_scale);
    } else {
      --overflows_left_;
    }
    last_overflow_ = updates_;
  } else {
    if (options_.consecutive_hysteresis) {
      overflows_left_ = options_.hysteresis;
    }
    const int64_t clean = updates_ - last_overflow_ - (options_.as_torch ? 0 : 1);
    if (clean > 0 && clean % options_.loss_scale_window == 0) {
      if (!options_.consecutive_hysteresis) {
        overflows_left_ = options_.hysteresis;
      }
      scale_ *= 2;
    }
  }
  ++updates_;
  return scale_;
}

nlohmann::json DynamicLossScale::state() const {
  return {
      {"scale", scale_},
      {"overflows_left", overflows_left_},
      {"updates", updates_},
      {"last_overflow", last_overflow_}};
}

void DynamicLossScale::load_state(const nlohmann::json& state) {
  try {
    const auto scale = state.at("scale").get<double>();
    const auto overflows_left = state.at("overflows_left").get<int64_t>();
    const auto updates = state.at("updates").get<int64_t>();
    last_overflow_ = state.at("last_overflow").get<int64_t>();
    scale_ = scale;
    overflows_left_ = overflows_left;
    updates_ = updates;
  } catch (const nlohmann::json::exception& error) {
    throw ConfigError("loss scale", fmt::format("the saved state is invalid: {}", error.what()));
  }
}

}  // namespace lockstep
