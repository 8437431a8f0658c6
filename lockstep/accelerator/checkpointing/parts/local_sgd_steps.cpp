// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "lockstep/accelerator/checkpointing/parts/parts.h"

namespace lockstep::internal {
namespace {

/// Saves and loads the numbers of updates of the running LocalSgd scopes.
class LocalSgdStepsPart final : public CheckpointPart {
 public:
  explicit LocalSgdStepsPart(LocalSgdScopes& local_sgds) : local_sgds_(local_sgds) {}

  void collect(StateToSave& state) const override {
    if (!local_sgds_.empty()) {
      state.meta["local_sgd_steps"] = local_sgds_.steps();
    }
  }

  bool is_loaded(const StateToLoad& state) const override { return state.loads_optimizers(); }
  void check(StateToLoad& state) const override {
    if (state.saved.local_sgd_steps) {
      state.apply.emplace_back(
          [&local_sgds = local_sgds_,
           steps = *state.saved.local_sgd_steps,
           own_states = !state.is_resharded()] { local_sgds.restore(steps, own_states); });
    }
  }

 private:
  LocalSgdScopes& local_sgds_;
};

}  // namespace

std::unique_ptr<CheckpointPart> local_sgd_steps_part(LocalSgdScopes& local_sgds) {
  return std::make_unique<LocalSgdStepsPart>(local_sgds);
}

}  // namespace lockstep::internal
