// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::flat {

/// Where one parameter lies in its bucket.
struct BucketEntry {
  int64_t parameter = 0;  ///< Index into the list the layout was planned from.
  int64_t offset = 0;     ///< First element within the bucket.
  int64_t numel = 0;
};

/// Parameters that are rounded to 16 bits on their way between ranks, or whose gradients are.
struct CommDtypes {
  std::set<const at::TensorImpl*> parameters = {};
  at::ScalarType dtype = at::kBFloat16;  ///< fp16 or bf16.

  /// What that is of one; none if it travels as wide as it is, as what has 16 bits already does.
  std::optional<at::ScalarType> of(const at::Tensor& parameter) const;
};

/// One contiguous buffer's worth of parameters of one dtype and device, which travel alike.
struct BucketPlan {
  std::vector<BucketEntry> entries;
  int64_t numel = 0;  ///< Elements, gaps for alignment included.
  /// What it is rounded to on its way. None: nothing.
  std::optional<at::ScalarType> narrow = std::nullopt;
};

/// Cuts `parameters` into buckets.
///
/// The order is the reverse of the list's, since backward meets the last layers first; it depends
/// on shapes and dtypes alone, so ranks that agree on those agree on the plan. The first bucket is
/// capped at `first_cap_bytes`, so that communication starts early, the others at `cap_bytes`; a
/// larger parameter gets a bucket of its own. Every slot starts at a multiple of 64 bytes. With
/// `narrow` buckets are in the order in which backward fills them. After: Li et al., "PyTorch
/// Distributed", VLDB 2020, section 3.2.
std::vector<BucketPlan> plan_buckets(
    const std::vector<at::Tensor>& parameters,
    int64_t cap_bytes,
    int64_t first_cap_bytes,
    const CommDtypes& narrow = {});

/// The part of `buffer` that `slot` names, shaped and strided like `parameter`: a gradient
/// accumulated into it lands in the buffer. A parameter whose memory has gaps or overlaps gets a
/// contiguous view.
at::Tensor view_like(
    const at::Tensor& buffer, const BucketEntry& entry, const at::Tensor& parameter);

}  // namespace lockstep::flat
