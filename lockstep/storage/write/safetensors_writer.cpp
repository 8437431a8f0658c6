// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/write/safetensors_writer.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/storage/file/output_file.h"
#include "lockstep/storage/safetensors/slices.h"

namespace lockstep::storage {
namespace {

/// Sorts tensors as the reference does: large dtypes first, so that all are aligned, then by name.
std::vector<const OutputTensor*> in_file_order(const std::vector<OutputTensor>& tensors) {
  std::vector<const OutputTensor*> order;
  for (const OutputTensor& tensor : tensors) {
    order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(), [](const auto* left, const auto* right) {
    return left->dtype != right->dtype ? left->dtype > right->dtype : left->name < right->name;
  });
  return order;
}

SafetensorsHeader lay_out(
    const std::string& path, const std::vector<const OutputTensor*>& tensors) {
  SafetensorsHeader header;
  std::set<std::string> seen;
  uint64_t next = 0;
  for (const OutputTensor* tensor : tensors) {
    if (tensor->name == "__metadata__" || !seen.insert(tensor->name).second) {
      throw CheckpointError(
          path, "cannot be written; the name is used twice or reserved", in_quotes(tensor->name));
    }
    const uint64_t end = next + output_bytes(path, *tensor);
    header.tensors.push_back({tensor->name, tensor->dtype, tensor->shape, next, end});
    next = end;
  }
  return header;
}

}  // namespace

uint64_t output_bytes(const std::string& path, const OutputTensor& tensor) {
  const std::optional<int64_t> elements = element_count(tensor.shape);
  if (!elements) {
    throw CheckpointError(
        path,
        "cannot be written; the shape is negative or has too many elements",
        in_quotes(tensor.name));
  }
  return static_cast<uint64_t>(*elements) * dtype_bytes(tensor.dtype);
}

FileSummary write_safetensors_file(
    const std::filesystem::path& path,
    const std::vector<OutputTensor>& tensors,
    const std::map<std::string, std::string>& metadata) {
  const std::vector<const OutputTensor*> order = in_file_order(tensors);
  SafetensorsHeader header = lay_out(path, order);
  header.metadata = metadata;
  const std::string head = render_safetensors_header(path, header);
  OutputFile file(path);
  file.append(head);
  FileSummary summary;
  for (size_t i = 0; i < order.size(); ++i) {
    const TensorEntry& entry = header.tensors[i];
    const std::string_view bytes = order[i]->bytes();
    LOCKSTEP_ASSERT(
        bytes.size() == entry.end - entry.begin, "the bytes of a tensor do not match its shape");
    summary.tensors[entry.name] = file.append(bytes);
  }
  file.finish();
  summary.bytes = file.bytes();
  summary.crc32c = file.crc32c();
  return summary;
}

}  // namespace lockstep::storage
