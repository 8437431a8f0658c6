// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/accelerator/training_state/checkpointable.h"
#include "lockstep/comm/group.h"

namespace lockstep {

class Accelerator;

/// The state that a sequence model carries from batch to batch of a data::sequence_loader, for
/// instance an LSTM's h and c. Each rank has the state of its own rows; a checkpoint has the state
/// of all ranks, so that any number of ranks that divides the rows continues exactly.
///
///   lockstep::SequenceState state(accelerator);
///   accelerator.register_for_checkpointing(state);
///   for (auto& batch : loader) {
///     if (batch.position == 0) {
///       state.reset();
///     }
///     ... state.tensors(), empty after a reset ...
///     state.set({h, c});
///   }
///
/// Cost: the memory of the tensors; a save gathers those of all ranks on each rank.
class SequenceState {
 public:
  /// `dim`: the dimension of the tensors that counts rows; 1 in torch's recurrent modules.
  explicit SequenceState(Accelerator& accelerator, int64_t dim = 1);

  bool empty() const { return tensors_.empty(); }
  /// Returns the tensors of the last set(), without their history.
  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  /// Replaces the state. Throws ConfigError for a tensor without that dimension.
  void set(const std::vector<at::Tensor>& tensors);
  void reset() { tensors_.clear(); }

  /// Collective: all ranks save at the same batch.
  ObjectState state_dict() const;
  /// Throws ConfigError for an invalid state, or one whose rows these ranks cannot share equally.
  void load_state_dict(const ObjectState& state);

 private:
  Group group_;
  at::Device device_;
  int64_t dim_;
  std::vector<at::Tensor> tensors_;
};

}  // namespace lockstep
