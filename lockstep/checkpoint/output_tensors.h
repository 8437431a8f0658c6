// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/named_tensor.h"
#include "lockstep/storage/safetensors_writer.h"

namespace lockstep::checkpoint {

/// `tensors` for a file: those on other devices, or not contiguous, are copied one at a time, when
/// they are written. Shared memory is written once per name. The result holds the tensors.
///
/// CheckpointError, naming `path`, for a tensor that is undefined, sparse, without data, or of a
/// dtype the format lacks.
std::vector<OutputTensor> output_tensors(const std::string& path, const NamedTensors& tensors);

}  // namespace lockstep::checkpoint
