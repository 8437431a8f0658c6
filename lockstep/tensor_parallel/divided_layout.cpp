// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor_parallel/divided_layout.h"

#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "lockstep/base/error.h"

namespace lockstep::tensor_parallel {

DividedLayout::DividedLayout(
    std::vector<int64_t> full_sizes, int64_t dim, const std::vector<int64_t>& fused, int ranks)
    : full_sizes_(std::move(full_sizes)), dim_(dim), ranks_(ranks) {
  const int64_t size = full_sizes_[static_cast<size_t>(dim)];
  const std::vector<int64_t> shares = fused.empty() ? std::vector<int64_t>{1} : fused;
  const int64_t all = std::accumulate(shares.begin(), shares.end(), int64_t{0});
  for (const int64_t share : shares) {
    if (share < 1 || size % all != 0 || size / all * share % ranks != 0) {
      throw ConfigError(
          "tensor_parallel",
          fmt::format(
              "dimension {} of a tensor [{}] cannot be divided among {} ranks in blocks of "
              "relative "
              "sizes [{}]; expected blocks whose sizes are multiples of {}; change tp or the sizes",
              dim,
              fmt::join(full_sizes_, ", "),
              ranks,
              fmt::join(shares, ", "),
              ranks));
    }
    blocks_.push_back(size / all * share);
  }
}

std::vector<int64_t> DividedLayout::own_sizes() const {
  std::vector<int64_t> sizes = full_sizes_;
  sizes[static_cast<size_t>(dim_)] /= ranks_;
  return sizes;
}

at::Tensor DividedLayout::own_part(const at::Tensor& full, int rank) const {
  std::vector<at::Tensor> parts;
  int64_t begin = 0;
  for (const int64_t block : blocks_) {
    parts.push_back(full.narrow(dim_, begin + block / ranks_ * rank, block / ranks_));
    begin += block;
  }
  return parts.size() == 1 ? parts.front().clone(at::MemoryFormat::Contiguous)
                           : at::cat(parts, dim_);
}

at::Tensor DividedLayout::full(const at::Tensor& own, Group& group) const {
  const at::Tensor gathered = group.all_gather(own.contiguous().unsqueeze(0)).wait();
  at::Tensor full = at::empty(full_sizes_, own.options());
  for (int rank = 0; rank < ranks_; ++rank) {
    const at::Tensor part = gathered[rank];
    int64_t begin = 0;
    int64_t part_begin = 0;
    for (const int64_t block : blocks_) {
      const int64_t size = block / ranks_;
      full.narrow(dim_, begin + size * rank, size).copy_(part.narrow(dim_, part_begin, size));
      begin += block;
      part_begin += size;
    }
  }
  return full;
}

}  // namespace lockstep::tensor_parallel
