// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/storage/manifest.h"
#include "lockstep/storage/safetensors/safetensors_map.h"

namespace lockstep::checkpoint {

/// Writes `tensors` to a new file, byte for byte as the reference implementation (PyPI safetensors
/// 0.8), and returns after fsync. With several keys the order of `metadata` is ours, sorted; the
/// reference's is random.
///
/// One pass: checksums are computed while writing. Tensors on other devices, or non-contiguous, are
/// copied one at a time. Shared storage is written once per name.
///
/// Throws CheckpointError, and leaves no file, if the path exists (also a symbolic link), a write
/// fails, or a name is repeated or is "__metadata__". Throws CheckpointError also for a tensor that
/// is undefined, sparse, without data, or of a dtype the format lacks. Thread-safe.
storage::FileSummary write_safetensors(
    const std::filesystem::path& path,
    const NamedTensors& tensors,
    const std::map<std::string, std::string>& metadata = {});

/// Returns torch's dtype for `dtype`.
at::ScalarType scalar_type(storage::Dtype dtype);

/// Returns a tensor of a mapped file as a view. The file stays mapped while the tensor or a view of
/// it lives. Writing to it is allowed, costs a copy of each touched page, and changes neither the
/// file nor other maps of it. Data not aligned to its dtype is copied. Throws CheckpointError if a
/// BOOL is neither 0 nor 1. Its bytes should be prefetched: see SafetensorsMap.
at::Tensor tensor_of(const storage::SafetensorsMap& file, const storage::TensorEntry& entry);
at::Tensor tensor_of(const storage::SafetensorsMap& file, const std::string& name);

}  // namespace lockstep::checkpoint
