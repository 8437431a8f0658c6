// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/loop/loop_state.h"

#include "lockstep/accelerator/loop/step_recorder.h"
#include "lockstep/base/error.h"

namespace lockstep {

void LoopState::forget_prepared(const Group& group) {
  finite = std::make_shared<FiniteGuard>(finite->policy(), group);
  reset_accumulation();
  optimizers = 0;
  if (recorder) {
    recorder->forget_optimizer();
  }
  gradients_used = gradients_expected = false;
  scaling.update_due = false;
  if (scaling.scaler) {
    scaling.scaler->forget_optimizers();
  }
}

void LoopState::refuse_offloaded(const char* where) const {
  if (offloaded) {
    throw ConfigError(
        where, "states are in host memory since offload_states(); call reload_states() first");
  }
}

std::shared_ptr<LoopState> new_loop_state(
    const AcceleratorOptions& options, bool scaled, const Group& group) {
  auto loop = std::make_shared<LoopState>();
  loop->accumulation.plugin = *options.gradient_accumulation_plugin;
  loop->finite = std::make_shared<FiniteGuard>(options.non_finite, group);
  loop->mean_over_ranks = [all = group](const at::Tensor& value) mutable {
    if (all.size() == 1 || !value.defined()) {
      return value;
    }
    return all
        .all_reduce(
            value.detach().to(at::kDouble, /*non_blocking=*/false, /*copy=*/true), ReduceOp::kAvg)
        .wait()
        .to(value.scalar_type());
  };
  if (scaled) {
    loop->scaling.scaler.emplace(options.grad_scaler, group);
    loop->scaling.loss_scale_rule = options.loss_scale_rule;
  }
  return loop;
}

}  // namespace lockstep
