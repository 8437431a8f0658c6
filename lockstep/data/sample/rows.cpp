// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/sample/rows.h"

#include <cstring>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ops/empty.h>

#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

bool rows_are_contiguous(const at::Tensor& source) {
  int64_t expected = 1;
  for (int64_t dim = source.dim() - 1; dim > 0; --dim) {
    if (source.size(dim) != 1 && source.stride(dim) != expected) {
      return false;
    }
    expected *= source.size(dim);
  }
  return true;
}

}  // namespace

void require_rows(const char* where, const at::Tensor& source) {
  if (!source.defined() || source.layout() != at::kStrided || !source.device().is_cpu() ||
      source.dim() < 1 || source.is_conj() || source.is_neg()) {
    throw ConfigError(
        where,
        fmt::format(
            "cannot take rows of this tensor; got {}, expected a dense CPU tensor with a dimension "
            "0",
            source.defined()
                ? source.toString() + fmt::format(" of shape [{}]", fmt::join(source.sizes(), ", "))
                : std::string("an undefined tensor")));
  }
  if (!rows_are_contiguous(source)) {
    throw ConfigError(
        where,
        fmt::format(
            "the rows of this tensor are not contiguous; got shape [{}] with strides [{}]; try "
            ".contiguous()",
            fmt::join(source.sizes(), ", "),
            fmt::join(source.strides(), ", ")));
  }
}

void require_indices(const char* where, std::span<const int64_t> indices, int64_t rows) {
  for (const int64_t index : indices) {
    if (index < 0 || index >= rows) {
      throw ConfigError(
          where, fmt::format("index outside the data; got {}, expected 0 to {}", index, rows - 1));
    }
  }
}

at::Tensor gather_rows(const at::Tensor& source, std::span<const int64_t> indices) {
  require_rows("gather_rows", source);
  require_indices("gather_rows", indices, source.size(0));
  std::vector<int64_t> shape = source.sizes().vec();
  shape[0] = static_cast<int64_t>(indices.size());
  at::Tensor rows = at::empty(shape, at::TensorOptions().dtype(source.dtype()));

  const size_t row_bytes =
      source.itemsize() * static_cast<size_t>(c10::multiply_integers(source.sizes().slice(1)));
  const int64_t stride_bytes = source.stride(0) * static_cast<int64_t>(source.itemsize());
  const auto* from = static_cast<const char*>(source.const_data_ptr());
  auto* to = static_cast<char*>(rows.mutable_data_ptr());
  if (row_bytes == 0) {
    return rows;
  }
  for (const int64_t index : indices) {
    std::memcpy(to, from + index * stride_bytes, row_bytes);
    to += row_bytes;
  }
  return rows;
}

}  // namespace lockstep::data
