// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>

#include "lockstep/accelerator/prepare/prepared_objects.h"
#include "lockstep/accelerator/step/training_step_observer.h"

namespace lockstep::internal {

/// Finds parameters that the processes of a tp line have in full, and whose gradients differ: they
/// are used with a part of the features or of the sequence only, and their gradients must be added.
///
/// Cost: at the first update of each optimizer, and at every 100th, a pass over these gradients and
/// one message of 16 bytes for each. Without tp nothing.
class TensorLineCheck final : public TrainingStepObserver {
 public:
  explicit TensorLineCheck(const PreparedObjects& objects) : objects_(objects) {}

  /// Throws ConfigError on all processes of the line. Collective in it.
  void gradients_complete(const Optimizer& optimizer) override;
  void objects_forgotten() override { updates_.clear(); }

 private:
  const PreparedObjects& objects_;
  std::map<const void*, int64_t> updates_;  ///< [address of the wrapped optimizer]
};

}  // namespace lockstep::internal
