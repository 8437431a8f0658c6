// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/contents.h"
#include "lockstep/comm/named_tensor.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/zero/sharding.h"

namespace lockstep {

/// Adds what this rank has of the optimizer's state, as its part of the set of tensors `stem`: by
/// the names of parameters, so that any number of ranks of any stage may load it.
void add_sharded_optimizer(
    checkpoint::Contents& contents,
    const std::string& stem,
    torch::optim::Optimizer& optimizer,
    const zero::Sharding& sharding,
    const ParameterName& names);

/// Adds what this rank has of a model, by the same rules: slices of parameters that come and go,
/// and of the fp32 masters of others, and, on rank 0, all else of `tensors`.
void add_sharded_model(
    checkpoint::Contents& contents,
    const std::string& stem,
    const NamedTensors& tensors,
    const zero::Sharding& sharding);

/// A model's tensors and their saved values, as this rank has them: a parameter that comes and
/// goes, or has fp32 masters, becomes this rank's piece of it, 1-D, on both sides; one of which
/// other ranks own all is left out. What was saved in the parameter's own dtype is in its piece's
/// then; unless `from_fp32_weights`, a master is what the parameter's dtype has of it. What does
/// not fit together stays as it is, to be refused.
struct ModelPieces {
  NamedTensors current;
  NamedTensors saved;
  /// Parameters with masters that this rank has whole, and what they were saved as.
  std::vector<std::pair<at::Tensor, at::Tensor>> whole = {};
};
ModelPieces own_model_pieces(
    const NamedTensors& current,
    NamedTensors saved,
    const zero::Sharding& sharding,
    bool from_fp32_weights);

/// Of an optimizer's saved state, what belongs to this rank's pieces of the parameters: slices of
/// tensors that are shaped as their parameter is, and `factors`, the fields of rows and columns,
/// whole. What is neither, and what belongs to no parameter, stays as it is, to be refused.
NamedTensors own_slices(
    NamedTensors saved,
    const zero::Sharding& sharding,
    const ParameterName& names,
    const std::vector<const char*>& factors);

}  // namespace lockstep
