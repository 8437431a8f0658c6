// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <functional>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/accelerator_state.h"
#include "lockstep/accelerator/training_state/import_accelerate.h"
#include "lockstep/accelerator/training_state/training_state.h"
#include "lockstep/base/log.h"
#include "lockstep/checkpoint/weights/load_model.h"
#include "lockstep/optim/state/optimizer_state.h"
#include "lockstep/storage/safetensors/safetensors_header.h"

namespace lockstep {

/// What Accelerate has written, as far as it is no pickle.
Accelerator::SavedAs Accelerator::check_import(
    const std::filesystem::path& folder, std::vector<std::function<void()>>& apply) {
  State& state = *state_;
  refuse_zero(
      "load_state",
      "what Accelerate saved is of whole parameters, of which each process has a part; load it "
      "once "
      "without ZeRO in as many processes as you like, and save_state(): that loads under any "
      "stage");
  const ParameterName names = state.parameter_names("load_state");
  ImportTarget target;
  target.models = state.models.size();
  for (const Optimizer& optimizer : state.optimizers) {
    auto& wanted = target.optimizers.emplace_back();
    wanted.settings = optimizer_settings(optimizer.inner());
    for (const auto& group : optimizer.inner().param_groups()) {
      auto& of_group = wanted.parameters.emplace_back();
      for (const at::Tensor& parameter : group.params()) {
        of_group.push_back(names(parameter));
      }
    }
  }
  for (const Scheduler& scheduler : state.schedulers) {
    target.schedulers.push_back(scheduler.state());
  }
  const ImportedState imported = import_accelerate(folder, target);
  for (size_t i = 0; i < imported.models.size(); ++i) {
    NamedTensors all = state.models[i].parameters();
    const NamedTensors buffers = state.models[i].buffers();
    all.insert(all.end(), buffers.begin(), buffers.end());
    apply.push_back(checkpoint::check_checkpoint_in_model(all, imported.models[i]).apply);
  }
  for (size_t i = 0; i < imported.optimizers.size(); ++i) {
    const auto& saved = imported.optimizers[i];
    apply.push_back(check_optimizer(
        state.optimizers[i].inner(),
        names,
        saved.tensors,
        saved.settings,
        saved.path,
        saved.settings_path));
    apply.emplace_back([&state, i, steps = saved.steps] {
      state.optimizers[i].set_steps(steps);
      state.steps_at_save = i == 0 ? steps : state.steps_at_save;
    });
  }
  for (size_t i = 0; i < imported.schedulers.size(); ++i) {
    apply.push_back(state.schedulers[i].check_state(imported.schedulers[i], folder.string()));
  }
  log_warning(fmt::format(
      "{} was saved by Accelerate: models, optimizers and schedulers go on; {} start from the "
      "beginning",
      folder.string(),
      fmt::join(imported.left_out, ", ")));
  SavedAs saved;
  for (const ImportedState::Optimizer& optimizer : imported.optimizers) {
    saved.steps.push_back(optimizer.steps);
  }
  // Accelerate gives a save no id. On one host it is its folder, whatever ranks call that.
  std::error_code error;
  saved.id = state.world.on_one_host()
                 ? storage::in_quotes(std::filesystem::canonical(folder, error).string())
                 : "by Accelerate";
  return saved;
}

}  // namespace lockstep
