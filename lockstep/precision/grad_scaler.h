// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group.h"

namespace lockstep {

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;        ///< Above 1.
  double backoff_factor = 0.5;     ///< Between 0 and 1.
  int64_t growth_interval = 2000;  ///< Clean updates in a row after which the scale grows.
  bool enabled = true;             ///< If not, every function passes its input through.
  /// Unscales fp16 gradients in place, where small ones vanish, instead of refusing them.
  bool allow_fp16 = false;

  bool operator==(const GradScalerOptions&) const = default;
};

/// torch.amp.GradScaler for several ranks. It scales the loss, so that small fp16 gradients do not
/// vanish. It skips an update on all ranks if gradients overflowed on any rank.
///
///     scaler.scale(loss).backward();
///     scaler.unscale_(&optimizer, parameters);   // only before clipping; step() does it otherwise
///     scaler.step(&optimizer, parameters, [&] { optimizer.step(); });
///     scaler.update();
///
/// A key, its address, identifies an optimizer. In each iteration scale every loss, then call
/// `step` at most once for each optimizer, then `update`, in the same order on every rank of
/// `group`. An inf or NaN on any rank skips that optimizer's update on all ranks, so weights and
/// scales stay equal.
///
/// Cost: one pass over the gradients; `step` waits for the device and, in a group of several,
/// all-reduces 4 bytes. Works on the CPU. Thread safety: none.
class GradScaler {
 public:
  /// Throws ConfigError for invalid options.
  explicit GradScaler(GradScalerOptions options = {}, Group group = {});

  /// Returns `loss` times the scale.
  at::Tensor scale(const at::Tensor& loss);

  /// Divides the gradients of `parameters` by the scale, at the first call since `update`; later
  /// calls change nothing. Call it when all gradients are complete and, with several ranks,
  /// averaged. Throws ConfigError for fp16 gradients unless allowed, and if no loss was ever
  /// scaled.
  void unscale_(const void* key, const std::vector<at::Tensor>& parameters);

  /// Unscales if necessary, then calls `update_parameters` unless a gradient on any rank is not
  /// finite. Returns whether it called it. Collective. Throws ConfigError on a second step before
  /// `update`.
  bool step(
      const void* key,
      const std::vector<at::Tensor>& parameters,
      const std::function<void()>& update_parameters);

  /// Ends the iteration and adjusts the scale. It shrinks the scale if any optimizer found an inf,
  /// grows it after enough clean iterations, or sets it to `new_scale`. Collective for optimizers
  /// that were unscaled but not stepped. Throws ConfigError if no optimizer was unscaled or stepped
  /// since the last one.
  void update(std::optional<double> new_scale = std::nullopt);

  /// Returns the scale, 1 if disabled. Waits for the device.
  double get_scale() const;
  /// Returns the number of clean updates in a row so far. Waits for the device.
  int64_t growth_tracker() const;
  /// Sets the ranks that agree on overflows from now on. A group of one suits gradients that are
  /// the same on all ranks. Call it between iterations only.
  void set_group(Group group) { group_ = std::move(group); }
  /// Returns whether a `step` of the running iteration found an inf or NaN. After `update`: of the
  /// ended iteration, until the next one begins.
  bool found_inf() const { return found_inf_; }
  bool enabled() const { return options_.enabled; }

  /// Returns {"scale": 65536.0, "growth_tracker": 3, "growth_factor": ..., "backoff_factor": ...,
  /// "growth_interval": ...}; {} if disabled. Between iterations, after `update`.
  nlohmann::json state() const;
  /// Restores the result of `state`. Does nothing if this scaler is disabled. Throws ConfigError,
  /// with nothing changed, unless `state` comes from an enabled scaler. A scale of 0, the result of
  /// endless overflows, is loaded with a warning: every update will be skipped.
  void load_state(const nlohmann::json& state);
  /// Throws the ConfigError that `load_state` would throw. Changes nothing.
  void check_state(const nlohmann::json& state) const;
  /// Drops the state of the optimizers of the running iteration. Call it when they are destroyed,
  /// since another optimizer may get the same address.
  void forget_optimizers() { optimizers_.clear(); }

 private:
  /// The state of one optimizer in the running iteration.
  struct OptimizerState {
    const void* key;
    at::Tensor found_inf;  ///< 0-d fp32 on the scale's device; above 0 if anything is not finite.
    bool agreed = false;   ///< All ranks have the same `found_inf`.
    bool stepped = false;
  };
  OptimizerState* find(const void* key);
  OptimizerState& unscaled(const void* key, const std::vector<at::Tensor>& parameters);
  void agree(OptimizerState& optimizer);
  void check_scaled(const char* where) const;
  void check_options() const;
  /// A parsed state.
  struct Saved {
    GradScalerOptions options;
    double scale = 0;
    int32_t growth_tracker = 0;
  };
  static Saved parse(const nlohmann::json& state);
  void place_on(at::Device device);

  GradScalerOptions options_;
  Group group_;
  at::Tensor scale_;           ///< 0-d fp32, on the device of the first loss.
  at::Tensor growth_tracker_;  ///< 0-d int32, beside it.
  bool scaled_ = false;        ///< `scale` was called.
  bool found_inf_ = false;
  std::vector<OptimizerState> optimizers_;  ///< In the order of first calls, equal on all ranks.
};

}  // namespace lockstep
