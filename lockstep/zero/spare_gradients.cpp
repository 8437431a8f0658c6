// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero/spare_gradients.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>

namespace lockstep::zero {
namespace {

constexpr int64_t kSmallBytes = int64_t{1} << 20;
constexpr int64_t kAllBytes = 4 * kSmallBytes;

}  // namespace

at::Tensor SpareGradients::take(
    const Group& group, int64_t elements, const at::TensorOptions& options) {
  const auto bytes = elements * static_cast<int64_t>(options.dtype().itemsize());
  if (!options.device().is_cpu() || bytes > kSmallBytes) {
    return at::empty({elements}, options);
  }
  const auto found = std::find_if(spares_.begin(), spares_.end(), [&](const at::Tensor& spare) {
    return spare.numel() == elements && spare.dtype() == options.dtype();
  });
  if (found == spares_.end()) {
    return group.empty({elements}, options);
  }
  at::Tensor spare = std::move(*found);
  spares_.erase(found);
  bytes_ -= bytes;
  return spare;
}

void SpareGradients::give(at::Tensor gradients) {
  const auto bytes = static_cast<int64_t>(gradients.nbytes());
  if (gradients.is_cpu() && bytes <= kSmallBytes && bytes_ + bytes <= kAllBytes) {
    bytes_ += bytes;
    spares_.push_back(std::move(gradients));
  }
}

}  // namespace lockstep::zero
