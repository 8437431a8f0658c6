// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/accelerator/options/options.h"
#include "lockstep/accelerator/prepare/preparer.h"
#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/ds_config/ds_config.h"

namespace lockstep {

/// Returns the mesh of the options, else of the launcher, with the file's autotp_size and
/// sequence_parallel_size. Throws ConfigError if two of these have different sizes.
MeshShape mesh_of_file(const ds_config::DsConfig& config, const AcceleratorOptions& options);

/// Returns the plan that the file's layers mean for a model of these parameters and classes. Throws
/// ConfigError for layers that no weight matches, and those that a plan cannot divide.
TensorPlan plan_of_file(
    const ds_config::TensorParallelSection& section,
    const NamedTensors& parameters,
    const internal::NamedClasses& classes);

/// Sets the plan of tensor parallelism to the file's, if it has one. Throws ConfigError if the mesh
/// has tp, and there is no plan or two.
void set_tensor_plan(
    const ds_config::TensorParallelSection& section,
    const NamedTensors& parameters,
    const internal::NamedClasses& classes,
    AcceleratorOptions& options);

}  // namespace lockstep
