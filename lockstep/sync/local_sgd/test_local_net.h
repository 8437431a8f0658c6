// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <memory>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "lockstep/sync/data_parallel.h"
#include "lockstep/sync/test_gradients.h"

namespace lockstep {

/// A model with what averaging has to think of: a parameter under two names, a frozen one, one in
/// bfloat16, buffers of both kinds.
struct LocalNet {
  at::Tensor w = at::linspace(-1, 1, 12).reshape({4, 3}).requires_grad_();
  at::Tensor half = at::full({3}, 0.5, at::kBFloat16).requires_grad_();
  at::Tensor frozen = at::full({}, 2.0);
  at::Tensor running = at::zeros({3});
  at::Tensor count = at::zeros({}, at::kLong);

  NamedTensors parameters() const {
    return {{"w", w}, {"tied", w}, {"half", half}, {"frozen", frozen}};
  }
  NamedTensors buffers() const { return {{"running", running}, {"count", count}}; }
  std::vector<at::Tensor> trained() const { return {w, half}; }
  static at::Tensor batch(int rank, int step) {
    return at::sin(at::arange(20, at::kFloat).reshape({5, 4}) + 7 * rank + 3 * step);
  }
  at::Tensor loss(int rank, int step) const {
    return (at::tanh(batch(rank, step).matmul(w)) * half.to(at::kFloat) * frozen - 0.3)
        .pow(2)
        .mean();
  }
  void update() const {
    const c10::AutoGradMode no_grad(false);
    for (const at::Tensor& parameter : trained()) {
      parameter.data().sub_(parameter.grad(), 0.1);
    }
  }
  void zero() const { zero_grad(trained()); }
};

inline std::shared_ptr<DataParallel> data_parallel(
    const LocalNet& net, const Group& group, const CommHookOptions& hook = {}) {
  return std::make_shared<DataParallel>(
      net.parameters(), net.buffers(), group, DataParallelOptions{.comm_hook = hook});
}

/// Returns whether gradients are averaged. Leaves none. Collective.
inline bool averages(const LocalNet& net, const Group& group) {
  net.zero();
  (net.w * (group.rank() == 0 ? 1 : 0)).sum().backward();
  const double found = net.w.grad()[0][0].item<double>();
  net.zero();
  return std::abs(found - 1.0 / group.size()) < 1e-6;
}

}  // namespace lockstep
