// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/accelerator/options/call_options.h"
#include "lockstep/accelerator/prepare/prepared_objects.h"
#include "lockstep/accelerator/step/training_step.h"
#include "lockstep/offload/offloaded_storage.h"

namespace lockstep::internal {

/// Moves training states from the device to host memory and back; see Accelerator::offload_states.
class StateOffloader final : public TrainingStepObserver {
 public:
  StateOffloader(const PreparedObjects& objects, TrainingStep& step)
      : objects_(objects), step_(step) {}

  /// Throws ConfigError for a state that cannot be moved.
  void offload(const OffloadStatesOptions& options);
  void reload(bool non_blocking);
  /// Throws ConfigError while a state that backward needs is offloaded.
  void loss_given(const GivenLoss& given) override;
  /// Restores the models, which the program may still use, and drops the other states.
  void forget();

 private:
  /// Returns the memory of each state.
  std::map<OffloadStateType, std::vector<at::Tensor>> memory_of_states(bool with_optimizers) const;

  const PreparedObjects& objects_;
  TrainingStep& step_;
  std::map<OffloadStateType, offload::OffloadedStorage> offloaded_;
};

}  // namespace lockstep::internal
