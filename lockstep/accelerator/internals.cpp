// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/internals.h"

#include <utility>

#include "lockstep/accelerator/accelerator_state.h"

namespace lockstep::accelerator {

const RunContext& Internals::context(Accelerator& accelerator) {
  return accelerator.state_->context;
}

PreparedObjects& Internals::objects(Accelerator& accelerator) {
  return accelerator.state_->objects;
}

TrainingStep& Internals::step(Accelerator& accelerator) {
  return *accelerator.state_->step;
}

FiniteGuard& Internals::finite_guard(Accelerator& accelerator) {
  return *accelerator.state_->finite;
}

BackwardRunner& Internals::backward_runner(Accelerator& accelerator) {
  return accelerator.state_->backward;
}

LocalSgdScopes& Internals::local_sgds(Accelerator& accelerator) {
  return accelerator.state_->local_sgds;
}

ActiveLoaders& Internals::active_loaders(Accelerator& accelerator) {
  return *accelerator.state_->active;
}

std::vector<Optimizer> Internals::prepare(Accelerator& accelerator, GivenObjects objects) {
  std::vector<Optimizer> optimizers = accelerator.preparer().prepare_given(std::move(objects));
  accelerator.end_prepare();
  return optimizers;
}

GradientScope Internals::begin_micro_step(
    Accelerator& accelerator, const std::vector<const void*>& models) {
  return accelerator.begin_micro_step(models);
}

GradientScope Internals::begin_no_sync(
    Accelerator& accelerator, const std::vector<const void*>& models) {
  return accelerator.begin_no_sync(models);
}

void Internals::trigger_sync(Accelerator& accelerator, const std::vector<const void*>& models) {
  accelerator.trigger_sync(models);
}

CollectiveScope Internals::begin_join(Accelerator& accelerator, const JoinUnevenInputs& options) {
  return accelerator.state_->uneven_inputs.begin(options);
}

std::shared_ptr<void> Internals::begin_zero_init(Accelerator& accelerator) {
  return accelerator.begin_zero_init();
}

void Internals::finish_zero_init(Accelerator& accelerator, const NamedTensors& tensors) {
  accelerator.finish_zero_init(tensors);
}

void Internals::save_model_tensors(
    Accelerator& accelerator,
    const NamedTensors& tensors,
    const std::filesystem::path& folder,
    const checkpoint::SaveModelOptions& options) {
  accelerator.save_model_tensors(tensors, folder, options);
}

void Internals::init_trackers(
    Accelerator& accelerator, const std::string& project_name, const nlohmann::json& config) {
  accelerator.state_->context.options.project_name = project_name;
  accelerator.init_trackers(config);
}

void Internals::add_checkpoint_part(
    Accelerator& accelerator, std::shared_ptr<CheckpointPart> part) {
  accelerator.state_->checkpointer.add_first_part(std::move(part));
}

void Internals::add_checkpointable(Accelerator& accelerator, AnyCheckpointable object) {
  accelerator.add_checkpointable(std::move(object));
}

}  // namespace lockstep::accelerator
