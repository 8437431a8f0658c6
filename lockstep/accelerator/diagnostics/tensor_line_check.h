// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>

#include "lockstep/accelerator/prepare/prepared_objects.h"
#include "lockstep/accelerator/step/training_step_observer.h"

namespace lockstep::internal {

/// Finds processes of a tp line that compute different losses, because they read different batches,
/// and parameters that all have in full whose values or gradients differ: such a parameter is used
/// with a part of the features or of the sequence only, and its gradients must be added.
///
/// Cost: at the first update of each optimizer, and at every 100th, a pass over these parameters
/// and one message of 32 bytes for each. Without tp nothing.
class TensorLineCheck final : public TrainingStepObserver {
 public:
  explicit TensorLineCheck(const PreparedObjects& objects) : objects_(objects) {}

  void loss_given(const GivenLoss& given) override;
  /// Throws ConfigError on all processes of the line. Collective in it.
  void gradients_complete(const Optimizer& optimizer) override;
  void objects_forgotten() override { updates_.clear(); }

 private:
  const PreparedObjects& objects_;
  at::Tensor loss_;                         ///< The last one.
  std::map<const void*, int64_t> updates_;  ///< [address of the wrapped optimizer]
};

}  // namespace lockstep::internal
