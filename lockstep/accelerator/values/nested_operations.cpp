// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/values/nested_operations.h"

#include <map>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/Functions.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/byte_collectives.h"

namespace lockstep {

std::string describe_tensor(const at::Tensor& tensor, bool with_sizes) {
  if (!tensor.defined()) {
    return "undefined";
  }
  if (!with_sizes) {
    return fmt::format("{} of {} dimensions", c10::toString(tensor.scalar_type()), tensor.dim());
  }
  return fmt::format(
      "{}[{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
}

at::Tensor slice_tensor(const at::Tensor& tensor, int64_t begin, int64_t end) {
  if (!tensor.defined() || tensor.dim() == 0) {
    throw ConfigError(
        "slice_tensors", fmt::format("{} has no rows to slice", describe_tensor(tensor)));
  }
  return tensor.slice(0, begin, end);
}

at::Tensor concatenate_tensors(const std::vector<at::Tensor>& parts, int64_t dim) {
  return at::cat(parts, dim);
}

at::Tensor fp32_of(const at::Tensor& tensor) {
  const bool half = tensor.defined() &&
                    (tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16);
  return half ? tensor.to(at::kFloat) : tensor;
}

int64_t batch_size_of(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && tensor.dim() > 0) {
      return tensor.size(0);
    }
  }
  throw ConfigError("find_batch_size", "the value has no tensor with a dimension 0");
}

std::pair<int64_t, int64_t> share_of(int64_t size, int rank, int world) {
  const int64_t each = size / world;
  const int64_t extras = size % world;
  const int64_t begin = rank * each + std::min<int64_t>(rank, extras);
  return {begin, begin + each + (rank < extras ? 1 : 0)};
}

int64_t share_padding(int64_t size, int rank, int world) {
  return size % world != 0 && rank >= size % world ? 1 : 0;
}

at::Tensor split_between_processes(
    const at::Tensor& inputs, int rank, int world, bool apply_padding) {
  const int64_t size = batch_size_of({inputs});
  const auto [begin, end] = share_of(size, rank, world);
  at::Tensor share = inputs.slice(0, begin, end);
  if (!apply_padding || size == 0 || share_padding(size, rank, world) == 0) {
    return share;
  }
  return at::cat({share, inputs.slice(0, size - 1, size)});
}

void refuse_unequal_lengths(const char* what, int64_t first, int64_t other) {
  throw ConfigError(
      "nested values",
      fmt::format("{} must be equal, and at least 1; got {} and {}", what, first, other));
}

void check_same_values(Group& group, const char* operation, const std::string& description) {
  if (group.size() == 1) {
    return;
  }
  const std::vector<std::string> all = all_gather_bytes(group, description);
  if (std::all_of(all.begin(), all.end(), [&](const auto& item) { return item == all[0]; })) {
    return;
  }
  std::string each;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    each += fmt::format("\n  rank {}: {}", rank, all[rank]);
  }
  throw ConfigError(
      operation,
      "processes pass different values; every process must pass the same structure, shapes and "
      "dtypes (pad_across_processes makes sizes equal):" +
          each);
}

void check_same_count(Group& group, const char* operation, size_t tensors) {
  if (group.size() == 1) {
    return;
  }
  const at::Tensor all =
      group.all_gather(at::full({1}, static_cast<int64_t>(tensors), at::kLong)).wait();
  const int64_t* each = all.const_data_ptr<int64_t>();
  std::map<int64_t, std::vector<int>> ranks_by_count;
  for (int rank = 0; rank < group.size(); ++rank) {
    ranks_by_count[each[rank]].push_back(rank);
  }
  if (ranks_by_count.size() == 1) {
    return;
  }
  std::vector<std::string> sides;
  for (const auto& [count, ranks] : ranks_by_count) {
    sides.push_back(fmt::format(
        "{} on rank{} {}", count, ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", ")));
  }
  throw ConfigError(
      operation,
      fmt::format(
          "the ranks pass different numbers of tensors; got {}, expected the same number on every "
          "rank; pass values of the same structure, or use gather_object for lists of any length",
          fmt::join(sides, ", ")));
}

}  // namespace lockstep
