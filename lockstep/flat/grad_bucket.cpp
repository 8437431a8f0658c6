// SPDX-License-Identifier: Apache-2.0
#include "lockstep/flat/grad_bucket.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/zeros.h>

namespace lockstep::flat {

GradBucket::GradBucket(
    BucketPlan plan,
    const std::vector<at::Tensor>& parameters,
    const Group& group,
    int64_t more_flags)
    : plan_(std::move(plan)) {
  const at::Tensor& first = parameters[plan_.entries.front().parameter];
  const auto count = static_cast<int64_t>(plan_.entries.size());
  buffer_ =
      group.empty({plan_.numel + count + more_flags}, first.options().requires_grad(false)).zero_();
  gradients_ = buffer_.narrow(0, 0, plan_.numel);
  all_flags_ = buffer_.narrow(0, plan_.numel, count + more_flags);
  flags_ = all_flags_.narrow(0, 0, count);
  more_flags_ = all_flags_.narrow(0, count, more_flags);
  host_flags_ = at::zeros({count}, at::kFloat);
  for (const BucketEntry& entry : plan_.entries) {
    // Autograd must not see a view: torch's zero_grad detaches gradients in place, which views
    // refuse.
    views_.push_back(view_like(buffer_, entry, parameters[entry.parameter]).variable_data());
  }
}

at::Tensor GradBucket::flat_gradient(size_t index) const {
  return gradients_.narrow(0, plan_.entries[index].offset, plan_.entries[index].numel);
}

void GradBucket::set_flags(const std::vector<bool>& present) {
  all_flags_set_ = std::find(present.begin(), present.end(), false) == present.end();
  if (all_flags_set_) {
    flags_.fill_(1);  // No copy, which would wait for a GPU.
    return;
  }
  std::copy(present.begin(), present.end(), host_flags_.mutable_data_ptr<float>());
  flags_.copy_(host_flags_);
}

std::vector<bool> GradBucket::flags() const {
  std::vector<bool> present(plan_.entries.size(), true);
  if (all_flags_set_) {
    return present;
  }
  host_flags_.copy_(flags_);
  const float* begin = host_flags_.const_data_ptr<float>();
  std::transform(begin, begin + present.size(), present.begin(), [](float sum) { return sum > 0; });
  return present;
}

}  // namespace lockstep::flat
