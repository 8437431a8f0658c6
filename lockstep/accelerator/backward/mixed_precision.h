// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "lockstep/accelerator/options/options.h"
#include "lockstep/accelerator/setup/run_context.h"
#include "lockstep/accelerator/step/training_step_observer.h"
#include "lockstep/precision/autocast.h"

namespace lockstep::internal {

/// Begins autocast scopes, and warns of a program that trains without them.
class MixedPrecision final : public TrainingStepObserver {
 public:
  explicit MixedPrecision(const RunContext& context) : context_(context) {}

  /// See Accelerator::autocast.
  Autocast autocast(const std::optional<AutocastOptions>& options);
  /// Warns once if mixed precision is on and no scope has begun.
  void loss_given(const GivenLoss& given) override;

 private:
  const RunContext& context_;
  bool used_ = false;
  bool warned_ = false;
};

}  // namespace lockstep::internal
