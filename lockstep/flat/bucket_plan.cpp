// SPDX-License-Identifier: Apache-2.0
#include "lockstep/flat/bucket_plan.h"

#include <algorithm>

#include <c10/core/ScalarType.h>

namespace lockstep::flat {
namespace {

constexpr int64_t kAlignBytes = 64;  // A cache line, and the widest vector register.

bool same_kind(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.device() == b.device();
}

}  // namespace

std::optional<at::ScalarType> CommDtypes::of(const at::Tensor& parameter) const {
  const bool narrows = parameters.contains(parameter.unsafeGetTensorImpl()) &&
                       parameter.is_floating_point() &&
                       !c10::isReducedFloatingType(parameter.scalar_type());
  return narrows ? std::optional(dtype) : std::nullopt;
}

std::vector<BucketPlan> plan_buckets(
    const std::vector<at::Tensor>& parameters,
    int64_t cap_bytes,
    int64_t first_cap_bytes,
    const CommDtypes& comm_dtypes) {
  std::vector<BucketPlan> plans;
  for (auto i = static_cast<int64_t>(parameters.size()) - 1; i >= 0; --i) {
    const at::Tensor& parameter = parameters[i];
    const auto item_bytes = static_cast<int64_t>(parameter.element_size());
    const int64_t align = std::max<int64_t>(kAlignBytes / item_bytes, 1);
    const std::optional<at::ScalarType> comm_dtype = comm_dtypes.of(parameter);
    // The newest bucket of this dtype and device may not be the last: BatchNorm's buffers alternate
    // between two dtypes.
    auto open = std::find_if(plans.rbegin(), plans.rend(), [&](const BucketPlan& plan) {
      return plan.comm_dtype == comm_dtype &&
             same_kind(parameters[plan.entries.front().parameter], parameter);
    });
    const int64_t cap = !plans.empty() && open == plans.rend() - 1 ? first_cap_bytes : cap_bytes;
    if (open == plans.rend() || (open->numel + parameter.numel()) * item_bytes > cap) {
      plans.emplace_back().comm_dtype = comm_dtype;
      open = plans.rbegin();
    }
    BucketPlan& plan = *open;
    plan.entries.push_back({.parameter = i, .offset = plan.numel, .numel = parameter.numel()});
    plan.numel = (plan.numel + parameter.numel() + align - 1) / align * align;
  }
  if (!comm_dtypes.parameters.empty()) {
    // Buckets start in order, and the two kinds alternate layer by layer. A bucket of few small
    // parameters that backward completes at its end would delay all buckets after it.
    std::stable_sort(plans.begin(), plans.end(), [](const BucketPlan& a, const BucketPlan& b) {
      return a.entries.back().parameter > b.entries.back().parameter;
    });
  }
  return plans;
}

at::Tensor view_like(
    const at::Tensor& buffer, const BucketEntry& entry, const at::Tensor& parameter) {
  const at::Tensor part = buffer.narrow(0, entry.offset, entry.numel);
  if (parameter.is_non_overlapping_and_dense()) {
    return part.as_strided(parameter.sizes(), parameter.strides());
  }
  return part.view(parameter.sizes());
}

}  // namespace lockstep::flat
