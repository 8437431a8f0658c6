// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/named_tensor.h"
#include "lockstep/storage/manifest.h"
#include "lockstep/storage/safetensors_map.h"

namespace lockstep::checkpoint {

/// Writes `tensors` to a new file, byte for byte what the reference implementation (PyPI
/// safetensors 0.8) writes, and returns once the disk has it (fsync). With several keys the order
/// of `metadata` is ours, sorted; the reference's is random.
///
/// One pass: checksums are taken from the bytes on their way out. Tensors on other devices, or not
/// contiguous, are copied one at a time. Shared storage is written once per name.
///
/// CheckpointError, and no file left behind, if the path exists (a symbolic link too), the disk
/// refuses, a name is given twice or is "__metadata__", or a tensor is undefined, sparse, without
/// data, or of a dtype the format lacks. Thread-safe.
FileSummary write_safetensors(
    const std::filesystem::path& path,
    const NamedTensors& tensors,
    const std::map<std::string, std::string>& metadata = {});

/// What torch calls it.
at::ScalarType scalar_type(Dtype dtype);

/// A tensor of a mapped file: a view of it, which keeps it mapped as long as the tensor or a view
/// of it lives. Writing to it is allowed, costs a copy of each page touched, and changes neither
/// the file nor what another map of it sees. Data not aligned to its dtype is copied.
/// CheckpointError if a BOOL is neither 0 nor 1. Its bytes should have been fetched, or be before
/// they are read: see SafetensorsMap.
at::Tensor tensor_of(const SafetensorsMap& file, const TensorEntry& entry);
at::Tensor tensor_of(const SafetensorsMap& file, const std::string& name);

}  // namespace lockstep::checkpoint
