// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/weights/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/weights/output_tensors.h"
#include "lockstep/storage/write/safetensors_writer.h"

namespace lockstep::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

constexpr std::array<std::pair<storage::Dtype, at::ScalarType>, 19> kTypes = {{
    {storage::Dtype::kBool, at::kBool},
    {storage::Dtype::kU8, at::kByte},
    {storage::Dtype::kI8, at::kChar},
    {storage::Dtype::kF8E5M2, at::kFloat8_e5m2},
    {storage::Dtype::kF8E4M3, at::kFloat8_e4m3fn},
    {storage::Dtype::kF8E8M0, at::kFloat8_e8m0fnu},
    {storage::Dtype::kF8E4M3Fnuz, at::kFloat8_e4m3fnuz},
    {storage::Dtype::kF8E5M2Fnuz, at::kFloat8_e5m2fnuz},
    {storage::Dtype::kI16, at::kShort},
    {storage::Dtype::kU16, at::kUInt16},
    {storage::Dtype::kF16, at::kHalf},
    {storage::Dtype::kBF16, at::kBFloat16},
    {storage::Dtype::kI32, at::kInt},
    {storage::Dtype::kU32, at::kUInt32},
    {storage::Dtype::kF32, at::kFloat},
    {storage::Dtype::kC64, at::kComplexFloat},
    {storage::Dtype::kF64, at::kDouble},
    {storage::Dtype::kI64, at::kLong},
    {storage::Dtype::kU64, at::kUInt64},
}};

}  // namespace

storage::FileSummary write_safetensors(
    const std::filesystem::path& path,
    const NamedTensors& tensors,
    const std::map<std::string, std::string>& metadata) {
  return storage::write_safetensors_file(path, output_tensors(path.string(), tensors), metadata);
}

at::ScalarType scalar_type(storage::Dtype dtype) {
  return kTypes[static_cast<size_t>(dtype)].second;
}

at::Tensor tensor_of(const storage::SafetensorsMap& file, const storage::TensorEntry& entry) {
  const std::string_view content = file.bytes(entry);
  const auto options = at::TensorOptions().dtype(scalar_type(entry.dtype));
  std::byte* data = file.private_bytes(entry);
  const bool aligned = std::bit_cast<uintptr_t>(data) % storage::dtype_bytes(entry.dtype) == 0;
  if (entry.dtype == storage::Dtype::kBool || !aligned) {
    file.fetch(entry);  // It is looked at now.
  }
  if (entry.dtype == storage::Dtype::kBool &&
      std::any_of(content.begin(), content.end(), [](char value) { return (value & ~1) != 0; })) {
    // To C++ such a bool is undefined behaviour.
    throw CheckpointError(
        file.path(), "has a BOOL that is neither 0 nor 1", storage::in_quotes(entry.name));
  }
  if (!aligned) {
    at::Tensor copy = at::empty(entry.shape, options);
    if (!content.empty()) {
      std::memcpy(copy.mutable_data_ptr(), content.data(), content.size());
    }
    return copy;
  }
  return at::from_blob(
      data, entry.shape, [map = file.memory()](void*) mutable { map.reset(); }, options);
}

at::Tensor tensor_of(const storage::SafetensorsMap& file, const std::string& name) {
  return tensor_of(file, file.entry(name));
}

}  // namespace lockstep::checkpoint
