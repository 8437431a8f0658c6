// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/tensor/value_use.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>

namespace lockstep::comm {
namespace {

/// torch's operations that only read sizes or identify memory, although their declarations suggest
/// a use of values. Some are never dispatched as methods. Operations that may access the memory
/// (resize_, set_, record_stream, is_pinned) are not listed.
constexpr std::array kUsesNoValues = std::to_array<std::string_view>(
    {"_assert_tensor_metadata",
     "_debug_has_internal_overlap",
     "_has_compatible_shallow_copy_type",
     "_has_same_storage_numel",
     "_is_zerotensor",
     "_version",
     "as_strided_",
     "cudnn_is_acceptable",
     "data",
     "dense_dim",
     "detach_",
     "dim",
     "element_size",
     "get_device",
     "numel",
     "output_nr",
     "requires_grad_",
     "result_type",
     "retain_grad",
     "retains_grad",
     "set_data",
     "size",
     "sparse_dim",
     "squeeze_",
     "storage_offset",
     "stride",
     "swapaxes_",
     "swapdims_",
     "t_",
     "transpose_",
     "unsqueeze_"});

bool may_use_values(const c10::FunctionSchema& schema) {
  constexpr std::string_view kTorchPrefix = "aten::";
  std::string_view name = schema.name();
  if (!name.starts_with(kTorchPrefix)) {
    return true;
  }
  name.remove_prefix(kTorchPrefix.size());
  if (name.ends_with("_like") || name.starts_with("new_") ||
      (name.starts_with("is_") && name != "is_pinned") || name.starts_with("sym_") ||
      std::find(kUsesNoValues.begin(), kUsesNoValues.end(), name) != kUsesNoValues.end()) {
    return false;
  }
  return std::none_of(schema.returns().begin(), schema.returns().end(), [](const auto& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  });
}

}  // namespace

bool uses_values(const c10::FunctionSchema& schema) {
  thread_local std::unordered_map<const c10::FunctionSchema*, bool> cache;
  const auto found = cache.find(&schema);
  if (found != cache.end()) {
    return found->second;
  }
  return cache[&schema] = may_use_values(schema);
}

}  // namespace lockstep::comm
