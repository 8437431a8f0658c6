// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/storage/write/safetensors_writer.h"

namespace lockstep::checkpoint {

/// Prepares `tensors` for a file. Those on other devices, non-contiguous, or in files
/// (offload::in_memory) are copied one at a time, when they are written. Shared memory is written
/// once per name. The result holds the tensors. `floating`: the dtype of written floating-point
/// tensors.
///
/// Throws CheckpointError, naming `path`, for a tensor that is undefined, sparse, without data, or
/// of a dtype the format lacks.
std::vector<storage::OutputTensor> output_tensors(
    const std::string& path,
    const NamedTensors& tensors,
    std::optional<at::ScalarType> floating = std::nullopt);

}  // namespace lockstep::checkpoint
