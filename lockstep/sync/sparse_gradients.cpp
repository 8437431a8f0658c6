// SPDX-License-Identifier: Apache-2.0
#include "lockstep/sync/sparse_gradients.h"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#include <ATen/Functions.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr uint8_t kSparse = 1;
constexpr uint8_t kDense = 2;

/// Returns all ranks' rows in rank order; `counts` has the number of each rank's.
at::Tensor gather_rows_of(Group& group, const at::Tensor& rows, const at::Tensor& counts) {
  const auto* each = counts.const_data_ptr<int64_t>();
  const int64_t most = *std::max_element(each, each + counts.numel());
  std::vector<int64_t> sizes = rows.sizes().vec();
  sizes[0] = most;
  at::Tensor padded = at::zeros(sizes, rows.options());
  padded.narrow(0, 0, rows.size(0)).copy_(rows);
  const at::Tensor all = group.all_gather(padded).wait();
  std::vector<at::Tensor> parts;
  for (int64_t rank = 0; rank < counts.numel(); ++rank) {
    parts.push_back(all.narrow(0, rank * most, each[rank]));
  }
  return at::cat(parts);
}

}  // namespace

void SparseGradients::take(size_t parameter) {
  own_[parameter] = std::exchange(parameters_[parameter].tensor.mutable_grad(), at::Tensor());
}

bool SparseGradients::any() const {
  return std::any_of(own_.begin(), own_.end(), [](const at::Tensor& own) { return own.defined(); });
}

void SparseGradients::clear() {
  own_.assign(own_.size(), at::Tensor());
}

std::vector<bool> SparseGradients::average(Group& group, const std::vector<bool>& has_dense) {
  const size_t count = parameters_.size();
  // The two kinds side by side, since a maximum of one number would hide a mixture.
  const at::Tensor kinds = at::zeros({static_cast<int64_t>(2 * count)}, at::kByte);
  auto* mine = kinds.mutable_data_ptr<uint8_t>();
  for (size_t i = 0; i < count; ++i) {
    mine[i] = own_[i].defined() ? kSparse : 0;
    mine[count + i] = has_dense[i] ? kDense : 0;
  }
  const at::Tensor all = group.all_reduce(kinds, ReduceOp::kMax).wait();
  const auto* on_any_rank = all.const_data_ptr<uint8_t>();
  std::vector<bool> is_sparse(count);
  for (size_t i = 0; i < count; ++i) {
    is_sparse[i] = on_any_rank[i] == kSparse;
    if (is_sparse[i] && on_any_rank[count + i] == kDense) {
      throw ConfigError(
          "data_parallel",
          fmt::format(
              "{} has a sparse gradient on one rank and a dense one on another; use its layer in "
              "the same way on every rank, or build it with sparse=false",
              parameters_[i].name));
    }
  }
  for (size_t i = 0; i < count; ++i) {
    if (is_sparse[i]) {
      parameters_[i].tensor.mutable_grad() = averaged(group, i);
    }
  }
  clear();
  return is_sparse;
}

at::Tensor SparseGradients::averaged(Group& group, size_t parameter) const {
  const at::Tensor& tensor = parameters_[parameter].tensor;
  at::Tensor indices = at::empty({0}, at::TensorOptions(tensor.device()).dtype(at::kLong));
  std::vector<int64_t> row_sizes = tensor.sizes().vec();
  row_sizes[0] = 0;
  at::Tensor rows = at::empty(row_sizes, tensor.options().requires_grad(false));
  if (own_[parameter].defined()) {
    const at::Tensor own = own_[parameter].coalesce();
    if (own.sparse_dim() != 1) {
      throw ConfigError(
          "data_parallel",
          fmt::format(
              "{} has a sparse gradient with {} sparse dimensions; expected 1, as an Embedding's; "
              "build its layer with sparse=false",
              parameters_[parameter].name,
              own.sparse_dim()));
    }
    indices = own.indices()[0];
    rows = own.values();
  }
  const at::Tensor counts = group.all_gather(at::full({1}, indices.size(0), at::kLong)).wait();
  const at::Tensor all_indices = gather_rows_of(group, indices, counts);
  const at::Tensor all_rows = gather_rows_of(group, rows, counts);
  return at::sparse_coo_tensor(all_indices.unsqueeze(0), all_rows.div(group.size()), tensor.sizes())
      .coalesce();
}

}  // namespace lockstep
