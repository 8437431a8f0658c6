// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/safetensors.h"

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
#include "lockstep/storage/output_file.h"

namespace lockstep::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

constexpr std::array<std::pair<Dtype, at::ScalarType>, 19> kTypes = {{
    {Dtype::kBool, at::kBool},
    {Dtype::kU8, at::kByte},
    {Dtype::kI8, at::kChar},
    {Dtype::kF8E5M2, at::kFloat8_e5m2},
    {Dtype::kF8E4M3, at::kFloat8_e4m3fn},
    {Dtype::kF8E8M0, at::kFloat8_e8m0fnu},
    {Dtype::kF8E4M3Fnuz, at::kFloat8_e4m3fnuz},
    {Dtype::kF8E5M2Fnuz, at::kFloat8_e5m2fnuz},
    {Dtype::kI16, at::kShort},
    {Dtype::kU16, at::kUInt16},
    {Dtype::kF16, at::kHalf},
    {Dtype::kBF16, at::kBFloat16},
    {Dtype::kI32, at::kInt},
    {Dtype::kU32, at::kUInt32},
    {Dtype::kF32, at::kFloat},
    {Dtype::kC64, at::kComplexFloat},
    {Dtype::kF64, at::kDouble},
    {Dtype::kI64, at::kLong},
    {Dtype::kU64, at::kUInt64},
}};

at::ScalarType scalar_type(Dtype dtype) {
  return kTypes[static_cast<size_t>(dtype)].second;
}

Dtype dtype_of(const std::string& path, const NamedTensor& named) {
  const auto refuse = [&](const std::string& why) {
    throw CheckpointError(path, "cannot be written; " + why, in_quotes(named.name));
  };
  const at::Tensor& tensor = named.tensor;
  if (!tensor.defined()) {
    refuse("the tensor is undefined");
  }
  if (tensor.layout() != at::kStrided || tensor.is_meta()) {
    refuse("a sparse tensor, or one without data, has no place in the format; densify it first");
  }
  const auto* row = std::find_if(kTypes.begin(), kTypes.end(), [&](const auto& type) {
    return type.second == tensor.scalar_type();
  });
  if (row == kTypes.end()) {
    refuse(fmt::format(
        "the format has no dtype {}; convert the tensor", c10::toString(tensor.scalar_type())));
  }
  return row->first;
}

/// The header, and for each of its tensors the place in `tensors`.
std::pair<SafetensorsHeader, std::vector<size_t>> lay_out(
    const std::string& path, const NamedTensors& tensors) {
  std::vector<std::pair<Dtype, size_t>> order;
  for (const NamedTensor& named : tensors) {
    order.emplace_back(dtype_of(path, named), order.size());
  }
  std::sort(order.begin(), order.end(), [&](const auto& left, const auto& right) {
    return left.first != right.first ? left.first > right.first
                                     : tensors[left.second].name < tensors[right.second].name;
  });
  SafetensorsHeader header;
  std::vector<size_t> places;
  std::map<std::string, size_t> seen;
  uint64_t next = 0;
  for (const auto& [dtype, place] : order) {
    const NamedTensor& named = tensors[place];
    if (named.name == "__metadata__" || !seen.emplace(named.name, place).second) {
      throw CheckpointError(
          path, "cannot be written; the name is given twice or reserved", in_quotes(named.name));
    }
    const uint64_t end = next + static_cast<uint64_t>(named.tensor.numel()) * dtype_bytes(dtype);
    header.tensors.push_back({named.name, dtype, named.tensor.sizes().vec(), next, end});
    places.push_back(place);
    next = end;
  }
  return {std::move(header), std::move(places)};
}

}  // namespace

FileSummary write_safetensors(
    const std::filesystem::path& path,
    const NamedTensors& tensors,
    const std::map<std::string, std::string>& metadata) {
  auto [header, places] = lay_out(path, tensors);
  header.metadata = metadata;
  const std::string head = render_safetensors_header(path, header);
  OutputFile file(path);
  file.append(head);
  FileSummary summary;
  for (size_t i = 0; i < places.size(); ++i) {
    const TensorEntry& entry = header.tensors[i];
    const at::Tensor plain =
        tensors[places[i]].tensor.detach().to(at::kCPU).resolve_conj().resolve_neg().contiguous();
    summary.tensors[entry.name] = file.append(plain.const_data_ptr(), entry.end - entry.begin);
  }
  file.finish();
  summary.bytes = file.bytes();
  summary.crc32c = file.crc32c();
  return summary;
}

at::Tensor tensor_of(const SafetensorsMap& file, const TensorEntry& entry) {
  const std::string_view content = file.bytes(entry);
  if (entry.dtype == Dtype::kBool &&
      std::any_of(content.begin(), content.end(), [](char value) { return (value & ~1) != 0; })) {
    // To C++ such a bool is undefined behaviour.
    throw CheckpointError(file.path(), "has a BOOL that is neither 0 nor 1", in_quotes(entry.name));
  }
  const auto options = at::TensorOptions().dtype(scalar_type(entry.dtype));
  std::byte* data = file.private_bytes(entry);
  if (std::bit_cast<uintptr_t>(data) % dtype_bytes(entry.dtype) != 0) {
    at::Tensor copy = at::empty(entry.shape, options);
    if (!content.empty()) {
      std::memcpy(copy.mutable_data_ptr(), content.data(), content.size());
    }
    return copy;
  }
  return at::from_blob(
      data, entry.shape, [map = file.memory()](void*) mutable { map.reset(); }, options);
}

at::Tensor tensor_of(const SafetensorsMap& file, const std::string& name) {
  return tensor_of(file, file.entry(name));
}

}  // namespace lockstep::checkpoint
