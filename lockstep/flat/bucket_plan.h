// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::flat {

/// The position of one parameter in its bucket.
struct BucketEntry {
  int64_t parameter = 0;  ///< Index into the list the layout was planned from.
  int64_t offset = 0;     ///< First element within the bucket.
  int64_t numel = 0;
};

/// Parameters that are sent in 16 bits, or whose gradients are.
struct CommDtypes {
  std::set<const at::TensorImpl*> parameters = {};
  at::ScalarType dtype = at::kBFloat16;  ///< fp16 or bf16.

  /// Returns the communication dtype of `parameter`. None: its own dtype, as for 16-bit types.
  std::optional<at::ScalarType> of(const at::Tensor& parameter) const;
};

/// The layout of one contiguous buffer for parameters of one dtype, device and communication dtype.
struct BucketPlan {
  std::vector<BucketEntry> entries;
  int64_t numel = 0;  ///< Elements, including gaps for alignment.
  /// The 16-bit communication dtype. None: the bucket's own dtype.
  std::optional<at::ScalarType> comm_dtype = std::nullopt;
};

/// Divides `parameters` into buckets.
///
/// The order is the reverse of the list's, since backward reaches the last layers first. It depends
/// only on shapes and dtypes, so ranks that agree on those agree on the plan. The first bucket is
/// limited to `first_cap_bytes`, so that communication starts early, the others to `cap_bytes`. A
/// larger parameter gets its own bucket. Every entry starts at a multiple of 64 bytes. With
/// `comm_dtypes` buckets are in the order in which backward fills them. Modelled on Li et al.,
/// "PyTorch Distributed", VLDB 2020, section 3.2.
std::vector<BucketPlan> plan_buckets(
    const std::vector<at::Tensor>& parameters,
    int64_t cap_bytes,
    int64_t first_cap_bytes,
    const CommDtypes& comm_dtypes = {});

/// Returns the part of `buffer` for `entry`, with the shape and strides of `parameter`. A gradient
/// accumulated into it is in the buffer. A parameter with gaps or overlaps in memory gets a
/// contiguous view.
at::Tensor view_like(
    const at::Tensor& buffer, const BucketEntry& entry, const at::Tensor& parameter);

}  // namespace lockstep::flat
