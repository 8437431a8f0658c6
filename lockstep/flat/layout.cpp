// SPDX-License-Identifier: Apache-2.0
#include "lockstep/flat/layout.h"

#include <algorithm>

namespace lockstep::flat {
namespace {

constexpr int64_t kAlignBytes = 64;  // A cache line, and the widest vector register.

bool same_kind(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.device() == b.device();
}

}  // namespace

std::vector<BucketPlan> plan_buckets(
    const std::vector<at::Tensor>& parameters, int64_t cap_bytes, int64_t first_cap_bytes) {
  std::vector<BucketPlan> plans;
  for (auto i = static_cast<int64_t>(parameters.size()) - 1; i >= 0; --i) {
    const at::Tensor& parameter = parameters[i];
    const auto item_bytes = static_cast<int64_t>(parameter.element_size());
    const int64_t align = std::max<int64_t>(kAlignBytes / item_bytes, 1);
    // The newest bucket of this dtype and device, though others may have been opened since:
    // BatchNorm's buffers alternate between two.
    auto open = std::find_if(plans.rbegin(), plans.rend(), [&](const BucketPlan& plan) {
      return same_kind(parameters[plan.slots.front().parameter], parameter);
    });
    const int64_t cap = !plans.empty() && open == plans.rend() - 1 ? first_cap_bytes : cap_bytes;
    if (open == plans.rend() || (open->numel + parameter.numel()) * item_bytes > cap) {
      plans.emplace_back();
      open = plans.rbegin();
    }
    BucketPlan& plan = *open;
    plan.slots.push_back({.parameter = i, .offset = plan.numel, .numel = parameter.numel()});
    plan.numel = (plan.numel + parameter.numel() + align - 1) / align * align;
  }
  return plans;
}

at::Tensor view_like(const at::Tensor& buffer, const Slot& slot, const at::Tensor& parameter) {
  const at::Tensor part = buffer.narrow(0, slot.offset, slot.numel);
  if (parameter.is_non_overlapping_and_dense()) {
    return part.as_strided(parameter.sizes(), parameter.strides());
  }
  return part.view(parameter.sizes());
}

}  // namespace lockstep::flat
