// SPDX-License-Identifier: Apache-2.0
#include "lockstep/flat/grad_bucket.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <ATen/ops/zeros.h>

namespace lockstep::flat {

GradBucket::GradBucket(
    BucketPlan plan, const std::vector<at::Tensor>& parameters, const Group& group)
    : plan_(std::move(plan)) {
  const at::Tensor& first = parameters[plan_.slots.front().parameter];
  const auto count = static_cast<int64_t>(plan_.slots.size());
  buffer_ = group.empty({plan_.numel + count}, first.options().requires_grad(false)).zero_();
  gradients_ = buffer_.narrow(0, 0, plan_.numel);
  flags_ = buffer_.narrow(0, plan_.numel, count);
  for (const Slot& slot : plan_.slots) {
    // Not a view to autograd, though it shares the memory: torch's own zero_grad detaches gradients
    // in place, which views refuse.
    views_.push_back(view_like(buffer_, slot, parameters[slot.parameter]).variable_data());
  }
}

at::Tensor GradBucket::flat(size_t index) const {
  return gradients_.narrow(0, plan_.slots[index].offset, plan_.slots[index].numel);
}

void GradBucket::set_flags(const std::vector<bool>& present) {
  at::Tensor host = at::zeros({flags_.numel()}, at::kFloat);
  std::copy(present.begin(), present.end(), host.mutable_data_ptr<float>());
  flags_.copy_(host);
}

std::vector<bool> GradBucket::flags() const {
  const at::Tensor host = flags_.to(at::kCPU, at::kFloat);
  const float* begin = host.const_data_ptr<float>();
  std::vector<bool> present;
  std::transform(
      begin, begin + host.numel(), std::back_inserter(present), [](float sum) { return sum > 0; });
  return present;
}

}  // namespace lockstep::flat
