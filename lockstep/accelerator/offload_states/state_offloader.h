// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/accelerator/loop/loop_state.h"
#include "lockstep/accelerator/options/offload_states.h"
#include "lockstep/accelerator/prepare/prepared_objects.h"
#include "lockstep/offload/offloaded_storage.h"

namespace lockstep {

/// Moves training states from the device to host memory and back; see Accelerator::offload_states.
/// Not thread-safe.
class StateOffloader {
 public:
  StateOffloader(const PreparedObjects& objects, LoopState& loop)
      : objects_(objects), loop_(loop) {}

  /// Throws ConfigError for a state that cannot be moved.
  void offload(const OffloadStatesOptions& options);
  void reload(bool non_blocking);
  /// Throws ConfigError while a state that backward needs is offloaded.
  void refuse_backward() const;
  /// Restores the models, which the program may still use, and drops the other states.
  void forget();

 private:
  /// Returns the memory of each state.
  std::map<OffloadStateType, std::vector<at::Tensor>> memory_of_states(bool with_optimizers) const;

  const PreparedObjects& objects_;
  LoopState& loop_;
  std::map<OffloadStateType, offload::OffloadedStorage> offloaded_;
};

}  // namespace lockstep
