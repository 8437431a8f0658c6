// SPDX-License-Identifier: Apache-2.0
#include "lockstep/schedule/reduce_on_plateau.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/schedule/schedule_checks.h"

namespace lockstep::schedule {
namespace {

constexpr const char* kName = "reduce_on_plateau";
constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

ReduceOnPlateau::ReduceOnPlateau(std::vector<double> lrs, ReduceOnPlateauOptions options)
    : options_(std::move(options)),
      lrs_(std::move(lrs)),
      best_(options_.mode == PlateauMode::kMin ? kInfinity : -kInfinity) {
  detail::check_range(kName, "factor", options_.factor, 0);
  if (options_.factor >= 1) {
    throw ConfigError(kName, fmt::format("factor must be below 1; got {}", options_.factor));
  }
  detail::check_steps(kName, "patience", options_.patience, 0);
  detail::check_steps(kName, "cooldown", options_.cooldown, 0);
  detail::check_range(kName, "threshold", options_.threshold, 0);
  detail::check_range(kName, "eps", options_.eps, 0);
  const auto groups = detail::group_count(kName, {{"lrs", &lrs_}, {"min_lr", &options_.min_lr}});
  if (groups && *groups != lrs_.size()) {
    throw ConfigError(
        kName,
        fmt::format(
            "min_lr has {} values; expected one, or as many as the optimizer's {} groups",
            *groups,
            lrs_.size()));
  }
}

bool ReduceOnPlateau::better(double metric) const {
  const bool min = options_.mode == PlateauMode::kMin;
  if (options_.threshold_mode == PlateauThreshold::kRelative) {
    return min ? metric < best_ * (1 - options_.threshold)
               : metric > best_ * (1 + options_.threshold);
  }
  return min ? metric < best_ - options_.threshold : metric > best_ + options_.threshold;
}

const std::vector<double>& ReduceOnPlateau::step(double metric) {
  if (better(metric)) {
    best_ = metric;
    bad_steps_ = 0;
  } else {
    ++bad_steps_;
  }
  if (cooldown_left_ > 0) {
    --cooldown_left_;
    bad_steps_ = 0;
  }
  if (bad_steps_ > options_.patience) {
    reduce();
    cooldown_left_ = options_.cooldown;
    bad_steps_ = 0;
  }
  return lrs_;
}

void ReduceOnPlateau::reduce() {
  for (size_t group = 0; group < lrs_.size(); ++group) {
    const double lowest = detail::value_for(options_.min_lr, group);
    const double reduced = std::max(lrs_[group] * options_.factor, lowest);
    if (lrs_[group] - reduced > options_.eps) {
      lrs_[group] = reduced;
    }
  }
}

nlohmann::json ReduceOnPlateau::state() const {
  nlohmann::json best = best_;
  if (!std::isfinite(best_)) {
    best = best_ > 0 ? "inf" : "-inf";  // JSON has no infinities.
  }
  return {
      {"lr", lrs_}, {"best", best}, {"bad_steps", bad_steps_}, {"cooldown_left", cooldown_left_}};
}

void ReduceOnPlateau::load_state(const nlohmann::json& state) {
  try {
    auto lrs = state.at("lr").get<std::vector<double>>();
    const nlohmann::json& best = state.at("best");
    const double loaded_best = best == "inf"    ? kInfinity
                               : best == "-inf" ? -kInfinity
                                                : best.get<double>();
    const auto bad_steps = state.at("bad_steps").get<int64_t>();
    const auto cooldown_left = state.at("cooldown_left").get<int64_t>();
    if (lrs.size() != lrs_.size()) {
      throw ConfigError(
          kName,
          fmt::format("the state has {} parameter groups; expected {}", lrs.size(), lrs_.size()));
    }
    detail::check_steps(kName, "bad_steps", bad_steps, 0);
    detail::check_steps(kName, "cooldown_left", cooldown_left, 0);
    lrs_ = std::move(lrs);
    best_ = loaded_best;
    bad_steps_ = bad_steps;
    cooldown_left_ = cooldown_left;
  } catch (const nlohmann::json::exception& error) {
    throw ConfigError(
        kName,
        fmt::format(
            "invalid state; got {} ({}), expected the result of state()",
            state.dump(),
            error.what()));
  }
}

}  // namespace lockstep::schedule
