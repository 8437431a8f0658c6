// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/internals.h"

#include <utility>

#include "lockstep/accelerator/accelerator_state.h"

namespace lockstep::internal {

const RunContext& AcceleratorInternals::context(Accelerator& accelerator) {
  return accelerator.state_->context;
}

PreparedObjects& AcceleratorInternals::objects(Accelerator& accelerator) {
  return accelerator.state_->objects;
}

TrainingStep& AcceleratorInternals::step(Accelerator& accelerator) {
  return *accelerator.state_->step;
}

FiniteGuard& AcceleratorInternals::finite_guard(Accelerator& accelerator) {
  return *accelerator.state_->finite;
}

BackwardRunner& AcceleratorInternals::backward_runner(Accelerator& accelerator) {
  return accelerator.state_->backward;
}

LocalSgdScopes& AcceleratorInternals::local_sgds(Accelerator& accelerator) {
  return accelerator.state_->local_sgds;
}

ActiveLoaders& AcceleratorInternals::active_loaders(Accelerator& accelerator) {
  return *accelerator.state_->active;
}

std::vector<Optimizer> AcceleratorInternals::prepare(
    Accelerator& accelerator, GivenObjects objects) {
  std::vector<Optimizer> optimizers = accelerator.preparer().prepare_given(std::move(objects));
  accelerator.end_prepare();
  return optimizers;
}

GradientScope AcceleratorInternals::begin_micro_step(
    Accelerator& accelerator, const std::vector<const void*>& models) {
  return accelerator.begin_micro_step(models);
}

GradientScope AcceleratorInternals::begin_no_sync(
    Accelerator& accelerator, const std::vector<const void*>& models) {
  return accelerator.begin_no_sync(models);
}

void AcceleratorInternals::trigger_sync(
    Accelerator& accelerator, const std::vector<const void*>& models) {
  accelerator.trigger_sync(models);
}

CollectiveScope AcceleratorInternals::begin_join(
    Accelerator& accelerator, const JoinUnevenInputs& options) {
  return accelerator.state_->uneven_inputs.begin(options);
}

std::shared_ptr<void> AcceleratorInternals::begin_zero_init(Accelerator& accelerator) {
  return accelerator.begin_zero_init();
}

void AcceleratorInternals::finish_zero_init(Accelerator& accelerator, const NamedTensors& tensors) {
  accelerator.finish_zero_init(tensors);
}

void AcceleratorInternals::save_model_tensors(
    Accelerator& accelerator,
    const NamedTensors& tensors,
    const std::filesystem::path& folder,
    const checkpoint::SaveModelOptions& options) {
  accelerator.save_model_tensors(tensors, folder, options);
}

void AcceleratorInternals::init_trackers(
    Accelerator& accelerator, const std::string& project_name, const nlohmann::json& config) {
  accelerator.state_->context.options.project_name = project_name;
  accelerator.init_trackers(config);
}

void AcceleratorInternals::add_checkpoint_part(
    Accelerator& accelerator, std::shared_ptr<CheckpointPart> part) {
  accelerator.state_->checkpointer.add_first_part(std::move(part));
}

void AcceleratorInternals::set_own_files(Accelerator& accelerator, StateSaver::OwnFiles write) {
  accelerator.state_->checkpointer.saver().set_own_files(std::move(write));
}

void AcceleratorInternals::add_checkpointable(Accelerator& accelerator, AnyCheckpointable object) {
  accelerator.add_checkpointable(std::move(object));
}

}  // namespace lockstep::internal
