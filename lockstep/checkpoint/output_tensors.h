// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "lockstep/comm/named_tensor.h"
#include "lockstep/storage/safetensors_writer.h"

namespace lockstep::checkpoint {

/// `tensors` for a file: those on other devices, or not contiguous, are copied one at a time, when
/// they are written, and so are those that lie in files (offload::in_memory). Shared memory is
/// written once per name. The result holds the tensors.
/// `floating`: what floating-point tensors are written as, each rounded when it is its turn.
///
/// CheckpointError, naming `path`, for a tensor that is undefined, sparse, without data, or of a
/// dtype the format lacks.
std::vector<OutputTensor> output_tensors(
    const std::string& path,
    const NamedTensors& tensors,
    std::optional<at::ScalarType> floating = std::nullopt);

}  // namespace lockstep::checkpoint
