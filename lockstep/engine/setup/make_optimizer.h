// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <torch/optim/optimizer.h>

#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/ds_config/parameters.h"
#include "lockstep/optim/rules/mup.h"

namespace lockstep {

/// Creates the optimizer of lockstep::optim for a ds_config.json's section and `parameters`.
/// `mup_shapes`: see InitializeOptions. Throws ConfigError for refused options, and for muP's
/// optimizers without shapes.
std::shared_ptr<torch::optim::Optimizer> make_optimizer(
    const ds_config::OptimizerSection& section,
    const NamedTensors& parameters,
    const optim::InfShapes& mup_shapes);

}  // namespace lockstep
