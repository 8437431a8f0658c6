// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "lockstep/sync/data_parallel.h"
#include "lockstep/sync/test_gradients.h"

namespace lockstep {

/// SGD with momentum on two layers; `extra` takes part in even batches only, `running` is a buffer
/// that each forward moves, `velocity` the optimizer's state.
struct JoinNet {
  at::Tensor w = at::linspace(-1, 1, 12, at::kDouble).reshape({4, 3}).requires_grad_();
  at::Tensor extra = at::full({3}, 0.5, at::kDouble).requires_grad_();
  at::Tensor running = at::zeros({3}, at::kDouble);
  at::Tensor velocity = at::zeros({4, 3}, at::kDouble);

  NamedTensors parameters() const { return {{"w", w}, {"extra", extra}}; }
  NamedTensors buffers() const { return {{"running", running}}; }
  static at::Tensor batch(int rank, int index) {
    return at::sin(at::arange(20, at::kDouble).reshape({5, 4}) + 7 * rank + 3 * index);
  }
  at::Tensor forward(const at::Tensor& x, int index) {
    at::Tensor y = at::tanh(x.matmul(w));
    running.mul_(0.9).add_(y.detach().mean(0), 0.1);
    if (index % 2 == 0) {
      y = y * extra;
    }
    return (y - 0.3).pow(2).mean();
  }
  void update() {
    const c10::AutoGradMode no_grad(false);
    if (w.grad().defined()) {
      velocity.mul_(0.5).add_(w.grad());
      w.data().sub_(velocity, 0.1);
    }
    if (extra.grad().defined()) {
      extra.data().sub_(extra.grad(), 0.1);
    }
  }
  void zero() { zero_grad({w, extra}); }
  std::shared_ptr<DataParallel> parallel(const Group& group) const {
    return std::make_shared<DataParallel>(
        parameters(), buffers(), group, DataParallelOptions{.cap_bytes = 1, .first_cap_bytes = 1});
  }
};

/// `every`: accumulation. `zero_in_place`: as torch's zero_grad(set_to_none=false).
inline void train(
    JoinNet& net,
    DataParallel& parallel,
    int rank,
    int batches,
    int every,
    bool zero_in_place = false) {
  for (int i = 0; i < batches; ++i) {
    const bool last = (i + 1) % every == 0 || i + 1 == batches;
    parallel.set_sync(last);
    net.forward(JoinNet::batch(rank, i), i).backward();
    if (last) {
      net.update();
      if (!zero_in_place) {
        net.zero();
      } else {
        for (const at::Tensor& parameter : {net.w, net.extra}) {
          if (parameter.grad().defined()) {
            parameter.mutable_grad().mul_(0.5).zero_();
          }
        }
      }
    }
  }
}

}  // namespace lockstep
