// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::data {

/// A file of records of fixed size as a tensor [n, record_shape...], without reading it: the tensor
/// is a view of the mapped file, which stays mapped as long as the tensor or a view of it lives.
/// See MappedFile.
///
/// `record_shape` empty: a record is one element. The first `offset_bytes` of the file, a header
/// perhaps, are left out. Elements are in the byte order of this machine. The tensor is for reading
/// only: writing to it ends the process with SIGSEGV.
///
/// ConfigError if the file cannot be mapped, if what follows the offset is no whole number of
/// records, and for a shape that is not positive or an offset that is negative, beyond the file or
/// not aligned to an element.
at::Tensor mapped_tensor(
    const std::string& path,
    at::ScalarType dtype,
    const std::vector<int64_t>& record_shape,
    int64_t offset_bytes = 0);

}  // namespace lockstep::data
