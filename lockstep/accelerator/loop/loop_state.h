// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/accelerator/loop/finite_guard.h"
#include "lockstep/accelerator/loop/loss_watch.h"
#include "lockstep/accelerator/options/options.h"
#include "lockstep/precision/grad_scaler.h"

namespace lockstep {

/// Where the loop stands between one update and the next: what backward, optimizers and schedulers
/// of one Accelerator share.
struct LoopState {
  /// One call of clip_grad_norm_, and the norm it found.
  struct Clipped {
    double max_norm;
    double norm_type;
    std::vector<const void*> parameters;
    at::Tensor norm;
  };

  GradientAccumulationPlugin accumulation;

  bool sync_gradients = true;  ///< Of the current micro-step; true outside accumulate().
  /// Where another than accumulate() counts micro-steps: whether the backward under way is an
  /// update's last.
  std::function<bool()> ends_update = nullptr;
  bool in_micro_step = false;
  int64_t step = 0;      ///< Accelerate's counter: micro-steps since a loader's end.
  int64_t in_group = 0;  ///< Micro-steps of the current group so far.
  int no_sync_depth = 0;
  int64_t backwards = 0;  ///< Of this process's life; optimizers note when theirs were used up.
  bool gradients_expected = false;  ///< A loss has depended on something that requires them.
  int64_t prepared_steps = 0;       ///< Calls of step() that prepared optimizers have acted on.
  bool offloaded = false;           ///< Something lies elsewhere since offload_states.
  bool sync_triggered = false;      ///< Within no_sync, by trigger_sync_in_backward.

  int64_t counts_in_micro_step = 0;
  /// Of backward(loss_sum, count): this rank's, since the last update.
  std::optional<double> counted = std::nullopt;

  /// With fp16. Its scale is updated once all optimizers had their step: at the next micro-step, or
  /// at the next backward outside of any, so that it never changes within an accumulation group.
  std::optional<GradScaler> scaler;
  std::function<double(bool overflowed)> loss_scale_rule = nullptr;
  bool scaler_update_due = false;
  int64_t updates = 0;  ///< Of the scale.
  std::shared_ptr<FiniteGuard> finite;
  LossWatch losses;             ///< Where `finite` ignores them.
  int64_t optimizers = 0;       ///< Prepared ones.
  bool gradients_used = false;  ///< A step of any of them has found gradients.
  /// Compares what of an optimizer's parameters no prepared model has, over all ranks. Returns
  /// whether it need not be asked again; ConfigError if ranks differ. Collective. Empty: no check.
  std::function<bool(const std::vector<at::Tensor>& parameters)> agree_on_unprepared = nullptr;
  /// Since the last backward, update or zero_grad.
  std::vector<Clipped> clipped;

  /// As before the first micro-step.
  void begin_anew() {
    sync_gradients = true;
    step = 0;
    in_group = 0;
    counted.reset();
    clipped.clear();
  }

  void update_scaler_if_due() {
    if (scaler && scaler_update_due) {
      scaler->update(
          loss_scale_rule ? std::optional(loss_scale_rule(scaler->found_inf())) : std::nullopt);
      ++updates;
      scaler_update_due = false;
    }
  }
};

}  // namespace lockstep
