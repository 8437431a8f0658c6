// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/accelerator/backward/accumulation_check.h"
#include "lockstep/accelerator/loop/loop_state.h"
#include "lockstep/accelerator/prepare/prepared_objects.h"

namespace lockstep {

/// Refuses updates by an optimizer that `prepare` did not return, within an accumulation group and
/// with fp16. Cost: that of AccumulationCheck. Not thread-safe.
class UnpreparedUpdateCheck {
 public:
  UnpreparedUpdateCheck(const PreparedObjects& objects, const LoopState& loop)
      : objects_(objects), loop_(loop) {}

  /// Chooses the parameters to watch, after models or optimizers were prepared.
  void watch_prepared();
  void begin_micro_step() { check_.begin(); }
  /// Notes parameters after a backward whose gradients no plain step() may use.
  void note_backward();
  /// Throws ConfigError if parameters changed since that backward without a prepared optimizer's
  /// step.
  void refuse_unprepared_update();
  /// Accepts all changes so far.
  void forget() { check_.forget(); }
  /// Stops watching.
  void clear();

 private:
  const PreparedObjects& objects_;
  const LoopState& loop_;
  AccumulationCheck check_;
  int64_t steps_when_noted_ = 0;  ///< LoopState::prepared_steps when it noted parameters.
  size_t watched_models_ = 0;
};

}  // namespace lockstep
