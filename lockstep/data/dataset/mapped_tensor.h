// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::data {

/// Maps a file of fixed-size records as a tensor [n, record_shape...] without reading it. The file
/// stays mapped as long as the tensor or a view of it exists.
///
/// An empty `record_shape` means one element a record. `offset_bytes` is the size of a header to
/// skip. Elements are in the byte order of this host. The tensor is read-only: writing to it ends
/// the process with SIGSEGV.
///
/// Throws ConfigError if the file cannot be mapped, if the bytes after the offset are not a whole
/// number of records, or if a size in `record_shape` is not positive. Throws ConfigError if the
/// offset is negative, beyond the file, or not aligned to an element.
at::Tensor mapped_tensor(
    const std::string& path,
    at::ScalarType dtype,
    const std::vector<int64_t>& record_shape,
    int64_t offset_bytes = 0);

}  // namespace lockstep::data
