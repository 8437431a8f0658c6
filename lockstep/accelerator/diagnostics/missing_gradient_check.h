// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>

#include "lockstep/accelerator/prepare/prepared_objects.h"
#include "lockstep/accelerator/step/training_step_observer.h"

namespace lockstep::internal {

/// Refuses optimizers of other parameters than those with gradients.
///
/// The check is local, and the same on all ranks after a backward that averages. It ends for an
/// optimizer with its first gradient. Cost: until then one pass over the list of its parameters.
class MissingGradientCheck final : public TrainingStepObserver {
 public:
  explicit MissingGradientCheck(const PreparedObjects& objects) : objects_(objects) {}

  void loss_given(const GivenLoss& given) override;
  /// Throws ConfigError if no parameter of the optimizer has a gradient.
  void gradients_complete(const Optimizer& optimizer) override;
  void objects_forgotten() override;

 private:
  struct GradientHistory {
    bool had_gradients = false;    ///< At any step.
    int64_t without_gradient = 0;  ///< Before the first with one.
  };

  const PreparedObjects& objects_;
  bool is_expected_ = false;  ///< A loss has depended on a tensor that requires gradients.
  bool any_had_gradients_ = false;
  std::map<const void*, GradientHistory> histories_;  ///< [address of the wrapped optimizer]
};

}  // namespace lockstep::internal
