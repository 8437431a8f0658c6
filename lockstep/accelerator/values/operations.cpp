// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/values/operations.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include "lockstep/accelerator/values/differentiable.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/byte_collectives.h"

namespace lockstep {
namespace {

/// Throws ConfigError for an undefined tensor. `op`: the operation that the other ranks are in.
void require_defined(Group& group, comm::Op op, const char* where, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    group.refuse(op, tensor);
    throw ConfigError(where, "the tensor is undefined");
  }
}

/// Returns whether autograd records operations on the tensor now.
bool is_recorded(const at::Tensor& tensor) {
  return tensor.requires_grad() && c10::GradMode::is_enabled();
}

at::Tensor padded(
    const at::Tensor& tensor, int64_t dim, int64_t size, double pad_index, bool pad_first) {
  if (tensor.size(dim) == size) {
    return tensor;
  }
  std::vector<int64_t> sizes(tensor.sizes().begin(), tensor.sizes().end());
  sizes[static_cast<size_t>(dim)] = size;
  at::Tensor result = at::full(sizes, pad_index, tensor.options());
  const int64_t begin = pad_first ? size - tensor.size(dim) : 0;
  result.narrow(dim, begin, tensor.size(dim)).copy_(tensor);
  return result;
}

/// Encodes a value as CBOR, since JSON text would turn NaN and infinities into null.
std::string packed(const nlohmann::json& value) {
  std::string bytes;
  nlohmann::json::to_cbor(value, bytes);
  return bytes;
}

}  // namespace

at::Tensor gather(Group& group, const at::Tensor& tensor) {
  require_defined(group, comm::Op::kAllGather, "gather", tensor);
  if (group.size() == 1) {
    return tensor;
  }
  return is_recorded(tensor) ? internal::differentiable_gather(group, tensor)
                             : group.all_gather(tensor.detach().contiguous()).wait();
}

at::Tensor gather_rows(
    Group& group,
    const at::Tensor& tensor,
    const std::vector<int64_t>& rows,
    const std::vector<int64_t>& keep) {
  require_defined(group, comm::Op::kAllGather, "gather", tensor);
  const auto me = static_cast<size_t>(group.rank());
  if (tensor.dim() == 0 || tensor.size(0) != rows[me]) {
    group.refuse(comm::Op::kAllGather, tensor);
    throw ConfigError(
        "gather",
        fmt::format(
            "expected {} rows; got a tensor of [{}]", rows[me], fmt::join(tensor.sizes(), ", ")));
  }
  const int64_t most = *std::max_element(rows.begin(), rows.end());
  at::Tensor all = gather(group, padded(tensor.detach(), 0, most, 0, false));
  if (std::all_of(keep.begin(), keep.end(), [&](int64_t kept) { return kept == most; })) {
    return all;
  }
  std::vector<at::Tensor> parts;
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    parts.push_back(all.narrow(0, static_cast<int64_t>(rank) * most, keep[rank]));
  }
  return at::cat(parts);
}

at::Tensor reduce(Group& group, const at::Tensor& tensor, ReduceOp op) {
  require_defined(group, comm::Op::kAllReduce, "reduce", tensor);
  if (is_recorded(tensor) && op == ReduceOp::kProduct) {
    group.refuse(comm::Op::kAllReduce, tensor);
    throw ConfigError(
        "reduce",
        "a product over processes keeps no gradient; got a tensor that requires one; pass "
        "detach(), or gather the tensor and multiply its rows");
  }
  if (group.size() == 1) {
    return tensor;
  }
  if (is_recorded(tensor)) {
    return internal::differentiable_reduce(group, tensor, op);
  }
  return group.all_reduce(tensor.detach().clone(at::MemoryFormat::Contiguous), op).wait();
}

at::Tensor broadcast(Group& group, const at::Tensor& tensor, int from_process) {
  require_defined(group, comm::Op::kBroadcast, "broadcast", tensor);
  if (group.size() == 1) {
    return tensor;
  }
  return group.broadcast(tensor.detach().clone(at::MemoryFormat::Contiguous), from_process).wait();
}

at::Tensor pad_across_processes(
    Group& group, const at::Tensor& tensor, int64_t dim, double pad_index, bool pad_first) {
  require_defined(group, comm::Op::kAllReduce, "pad_across_processes", tensor);
  if (dim < -tensor.dim() || dim >= tensor.dim()) {
    group.refuse(comm::Op::kAllReduce);  // Shapes may differ, and all may refuse alike.
    throw ConfigError(
        "pad_across_processes",
        fmt::format("no dimension {} in a tensor of [{}]", dim, fmt::join(tensor.sizes(), ", ")));
  }
  const int64_t positive = dim < 0 ? dim + tensor.dim() : dim;
  const at::Tensor largest =
      group.all_reduce(at::full({1}, tensor.size(positive), at::kLong), ReduceOp::kMax).wait();
  return padded(tensor.detach(), positive, largest.item<int64_t>(), pad_index, pad_first);
}

std::vector<nlohmann::json> gather_object(Group& group, const nlohmann::json& value) {
  std::vector<nlohmann::json> values;
  if (group.size() == 1) {
    values.push_back(value);
  } else {
    for (const std::string& bytes : all_gather_bytes(group, packed(value))) {
      values.push_back(nlohmann::json::from_cbor(bytes));
    }
  }
  if (!std::all_of(
          values.begin(), values.end(), [](const nlohmann::json& v) { return v.is_array(); })) {
    return values;
  }
  std::vector<nlohmann::json> flat;
  for (const nlohmann::json& array : values) {
    flat.insert(flat.end(), array.begin(), array.end());
  }
  return flat;
}

nlohmann::json broadcast_object(Group& group, const nlohmann::json& value, int from_process) {
  if (group.size() == 1) {
    return value;
  }
  return nlohmann::json::from_cbor(broadcast_bytes(group, packed(value), from_process));
}

}  // namespace lockstep
