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
  /// Unscale fp16 gradients where they lie, whose small ones vanish then.
  bool allow_fp16 = false;

  bool operator==(const GradScalerOptions&) const = default;
};

/// Scales the loss so that small fp16 gradients do not vanish, and skips the updates whose
/// gradients overflowed: torch.amp.GradScaler, with the verdict agreed by all ranks.
///
///     scaler.scale(loss).backward();
///     scaler.unscale_(&optimizer, parameters);   // only to clip or look; step() does it otherwise
///     scaler.step(&optimizer, parameters, [&] { optimizer.step(); });
///     scaler.update();
///
/// An optimizer is known by a key, its address. Per iteration: scale what is to be
/// differentiated, then for each optimizer at most one `step`, then one `update`, in the same order
/// on every rank of `group`. An inf or NaN on any rank skips that optimizer's update on all, so
/// neither weights nor scales part ways.
///
/// Cost: one pass over the gradients; `step` waits for the device and, in a group of several,
/// all-reduces 4 bytes. Works on the CPU. Thread safety: none.
class GradScaler {
 public:
  /// ConfigError for options without sense.
  explicit GradScaler(GradScalerOptions options = {}, Group group = {});

  /// `loss` times the scale.
  at::Tensor scale(const at::Tensor& loss);

  /// Divides the gradients of `parameters` by the scale, the first time since `update`; calling it
  /// again changes nothing. Call it when all gradients are there and, with several ranks, averaged.
  /// ConfigError for fp16 gradients unless allowed, and if nothing was ever scaled.
  void unscale_(const void* key, const std::vector<at::Tensor>& parameters);

  /// Unscales unless that is done, then calls `update_parameters` unless a gradient on any rank is
  /// not finite. Returns whether it did. Collective. ConfigError on a second step before `update`.
  bool step(
      const void* key,
      const std::vector<at::Tensor>& parameters,
      const std::function<void()>& update_parameters);

  /// Ends the iteration: shrinks the scale if any optimizer found an inf, grows it after enough
  /// clean ones, or sets it to `new_scale`. Collective for optimizers that were unscaled but not
  /// stepped. ConfigError if no optimizer was unscaled or stepped since the last one.
  void update(std::optional<double> new_scale = std::nullopt);

  /// The scale, 1 if disabled. Waits for the device.
  double get_scale() const;
  /// Clean updates in a row so far. Waits for the device.
  int64_t growth_tracker() const;
  /// Who agrees on overflows from now on: a group of one for gradients that are known to be the
  /// same on all ranks. Between iterations only.
  void set_group(Group group) { group_ = std::move(group); }
  /// Whether a `step` found an inf or NaN, in the running iteration or, right after `update`, in
  /// the one it ended.
  bool found_inf() const { return found_inf_; }
  bool enabled() const { return options_.enabled; }

  /// {"scale": 65536.0, "growth_tracker": 3, "growth_factor": ..., "backoff_factor": ...,
  /// "growth_interval": ...}; {} if disabled. Between iterations, after `update`.
  nlohmann::json state() const;
  /// ConfigError, with nothing changed, for anything but what `state` of an enabled one gives. If
  /// this one is disabled nothing happens. A scale of 0, to which a run without end of overflows
  /// falls, is loaded with a warning: no update will ever be made with it.
  void load_state(const nlohmann::json& state);
  /// ConfigError for what `load_state` would refuse. Changes nothing.
  void check_state(const nlohmann::json& state) const;
  /// Drops what is known of the optimizers of the running iteration: for when they are let go, as
  /// another may come to have the same address.
  void forget_optimizers() { optimizers_.clear(); }

 private:
  /// What is known of one optimizer in the running iteration.
  struct OptimizerState {
    const void* key;
    at::Tensor found_inf;  ///< 0-d fp32 on the scale's device; above 0 if anything is not finite.
    bool agreed = false;   ///< By all ranks.
    bool stepped = false;
  };
  OptimizerState* find(const void* key);
  OptimizerState& unscaled(const void* key, const std::vector<at::Tensor>& parameters);
  void agree(OptimizerState& optimizer);
  void check_scaled(const char* where) const;
  void check_options() const;
  /// What `load_state` changes.
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
  bool scaled_ = false;        ///< Whether `scale` was ever called.
  bool found_inf_ = false;
  std::vector<OptimizerState> optimizers_;  ///< In the order they came, the same on every rank.
};

}  // namespace lockstep
