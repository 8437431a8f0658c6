// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <torch/optim/optimizer.h>

#include "lockstep/comm/named_tensor.h"
#include "lockstep/ds_config/parameters.h"
#include "lockstep/optim/rules/mup.h"

namespace lockstep {

/// The optimizer of lockstep::optim that a ds_config.json's section describes, of `parameters`.
/// `mup_shapes`: see InitializeOptions. ConfigError for options that it refuses, and for muP's
/// optimizers without shapes.
std::shared_ptr<torch::optim::Optimizer> make_optimizer(
    const ds_config::OptimizerSection& section,
    const NamedTensors& parameters,
    const optim::InfShapes& mup_shapes);

}  // namespace lockstep
