// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/accelerator.h"

#include <cstdio>
#include <exception>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/accelerator/accelerator_state.h"
#include "lockstep/accelerator/diagnostics/progress_values.h"
#include "lockstep/accelerator/executable_batch_size.h"
#include "lockstep/accelerator/prepare/gathered_parameters.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/call_scope.h"
#include "lockstep/comm/fail_together.h"
#include "lockstep/watch/flight_recorder.h"

namespace lockstep {
namespace {

/// Runs `body` on the process for which `first` is true, then on the others. If it throws on the
/// first, all others throw Error. Collective.
void run_in_turn(const Group& group, bool first, const std::function<void()>& body) {
  std::exception_ptr failure;
  if (first) {
    try {
      body();
    } catch (...) {
      failure = std::current_exception();
    }
  }
  const bool failed = any_rank(group, failure != nullptr);
  if (failure) {
    std::rethrow_exception(failure);
  }
  if (failed) {
    throw Error("main_process_first", "the main process failed; see its own message");
  }
  if (!first) {
    body();
  }
}

}  // namespace

Accelerator::Accelerator(AcceleratorOptions options)
    : state_(std::make_unique<State>(internal::connect_run(std::move(options)))) {}

Accelerator::Accelerator(AcceleratorOptions options, WorldSpec world, Group group)
    : state_(std::make_unique<State>(
          internal::run_in_group(std::move(options), std::move(world), std::move(group)))) {}

Accelerator::Accelerator(Accelerator&& other) noexcept = default;
Accelerator& Accelerator::operator=(Accelerator&& other) noexcept = default;
Accelerator::~Accelerator() = default;

Accelerator::State::~State() {
  // Loaders may outlive this.
  active->set_before_pass(nullptr);
  active->set_between_batches(nullptr);
  step->remove_observers();  // Optimizers may outlive this, too.
  const bool is_last = --living == 0;
  if (is_last && std::uncaught_exceptions() == 0) {
    // Otherwise it has failed, and the other ranks must not take it for a rank that has left.
    watch::FlightRecorder::process().leave();
  }
}

// --- rank and world

int Accelerator::process_index() const {
  return state_->context.world.rank;
}

int Accelerator::num_processes() const {
  return state_->context.world.size;
}

int Accelerator::local_process_index() const {
  return state_->context.world.local_rank;
}

bool Accelerator::is_main_process() const {
  return process_index() == 0;
}

bool Accelerator::is_local_main_process() const {
  return local_process_index() == 0;
}

bool Accelerator::is_last_process() const {
  return process_index() == num_processes() - 1;
}

bool Accelerator::use_distributed() const {
  return num_processes() > 1;
}

std::string Accelerator::distributed_type() const {
  if (!use_distributed()) {
    return "NO";
  }
  return device().is_cpu() ? "MULTI_CPU" : "MULTI_GPU";
}

at::Device Accelerator::device() const {
  return state_->context.device;
}

const WorldSpec& Accelerator::world() const {
  return state_->context.world;
}

Group& Accelerator::group() {
  return state_->context.group;
}

const comm::MeshGroups& Accelerator::mesh() const {
  return state_->context.mesh;
}

// --- prepare

internal::Preparer& Accelerator::preparer() {
  return state_->preparer;
}

void Accelerator::end_prepare() {
  state_->start_recording();
  state_->backward.watch_prepared();
  state_->step->notify(&internal::TrainingStepObserver::objects_prepared);
}

void Accelerator::forget_prepared() {
  State& state = *state_;
  state.offloader.forget();
  state.backward.remove_hooks();
  state.gradients.forget_norms();
  state.accumulation.forget();
  state.step->forget_objects();
  state.preparer.clear();
  state.objects.clear();
  state.active->forget();
  state.local_sgds.abandon();
  state.checkpointer.saver().set_own_files(nullptr);
  release_cached_memory();
}

// --- accumulation and backward

GradientScope Accelerator::begin_micro_step(const std::vector<const void*>& models) {
  return state_->accumulation.begin_micro_step(models);
}

GradientScope Accelerator::begin_no_sync(const std::vector<const void*>& models) {
  return state_->accumulation.begin_no_sync(models);
}

void Accelerator::trigger_sync(const std::vector<const void*>& models) {
  state_->accumulation.trigger_sync(models);
}

bool Accelerator::sync_gradients() const {
  return state_->step->sync_gradients();
}

int64_t Accelerator::gradient_accumulation_steps() const {
  return state_->step->accumulation().num_steps;
}

void Accelerator::set_gradient_accumulation_steps(int64_t steps) {
  state_->step->set_accumulation_steps(steps);
}

void Accelerator::backward(const at::Tensor& loss, const BackwardOptions& options) {
  const comm::CallScope call("backward");
  state_->backward.backward(loss, options);
}

void Accelerator::backward(const at::Tensor& loss_sum, double count) {
  const comm::CallScope call("backward");
  state_->backward.backward(loss_sum, count);
}

at::Tensor Accelerator::scale_loss(const at::Tensor& loss) {
  return state_->backward.scale_loss(loss);
}

// --- precision and gradients

Precision Accelerator::mixed_precision() const {
  return state_->context.precision;
}

Autocast Accelerator::autocast(std::optional<AutocastOptions> options) const {
  return state_->precision.autocast(options);
}

GradScaler* Accelerator::scaler() {
  state_->step->scaling().update_if_due();
  return state_->step->scaler();
}

bool Accelerator::optimizer_step_was_skipped() const {
  return state_->objects.any_step_was_skipped();
}

void Accelerator::unscale_gradients() {
  state_->gradients.unscale();
}

void Accelerator::unscale_gradients(const Optimizer& optimizer) {
  state_->gradients.unscale(optimizer);
}

at::Tensor Accelerator::clip_grad_norm_(
    const std::vector<at::Tensor>& parameters, double max_norm, double norm_type) {
  const comm::CallScope call("clip_grad_norm_");
  const internal::LoopPartScope scope(*state_->step, tracking::LoopPart::kOptimizer);
  return state_->gradients.clip_norm(parameters, max_norm, norm_type);
}

void Accelerator::clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value) {
  state_->gradients.clip_value(parameters, clip_value);
}

const GradientNorms& Accelerator::gradient_norms() const {
  return state_->gradients.norms();
}

void Accelerator::average_gradients() {
  const comm::CallScope call("average_gradients");
  state_->backward.average_gradients();
}

std::vector<std::string> Accelerator::parameters_without_gradient() const {
  return state_->gradients.parameters_without_gradient();
}

// --- one process at a time

void Accelerator::on_main_process(const std::function<void()>& body) const {
  on_process(0, body);
}

void Accelerator::on_local_main_process(const std::function<void()>& body) const {
  on_local_process(0, body);
}

void Accelerator::on_last_process(const std::function<void()>& body) const {
  on_process(num_processes() - 1, body);
}

void Accelerator::on_process(int process_index, const std::function<void()>& body) const {
  if (process_index < 0 || process_index >= num_processes()) {
    throw ConfigError(
        "on_process",
        fmt::format(
            "process {} does not exist; expected 0 to {}", process_index, num_processes() - 1));
  }
  if (world().rank == process_index) {
    body();
  }
}

void Accelerator::on_local_process(
    int local_process_index, const std::function<void()>& body) const {
  if (local_process_index < 0 || local_process_index >= world().local_size) {
    throw ConfigError(
        "on_local_process",
        fmt::format(
            "local process {} does not exist; expected 0 to {}",
            local_process_index,
            world().local_size - 1));
  }
  if (world().local_rank == local_process_index) {
    body();
  }
}

void Accelerator::main_process_first(const std::function<void()>& body) {
  run_in_turn(group(), is_main_process(), body);
}

void Accelerator::local_main_process_first(const std::function<void()>& body) {
  run_in_turn(group(), is_local_main_process(), body);
}

void Accelerator::print(const std::string& line) const {
  if (is_local_main_process()) {
    around_status_line([&] {
      const std::string text = line + "\n";
      std::fwrite(text.data(), 1, text.size(), stdout);
      std::fflush(stdout);
    });
  }
}

void Accelerator::wait_for_everyone() {
  const comm::CallScope call("wait_for_everyone");
  state_->context.group.barrier();
  state_->replicas.note_at_barrier();
}

void Accelerator::set_trigger() {
  state_->triggered = true;
}

bool Accelerator::check_trigger() {
  const comm::CallScope call("check_trigger");
  return state_->collectives.any(std::exchange(state_->triggered, false));
}

// --- values across processes

internal::Collectives& Accelerator::collectives() {
  return state_->collectives;
}

std::vector<nlohmann::json> Accelerator::gather_object(const nlohmann::json& value) {
  const comm::CallScope call("gather_object");
  return state_->collectives.gather_object(value);
}

std::vector<nlohmann::json> Accelerator::gather_object_for_metrics(const nlohmann::json& array) {
  const comm::CallScope call("gather_object");
  return state_->collectives.gather_object_for_metrics(array);
}

nlohmann::json Accelerator::broadcast_object(const nlohmann::json& value, int from_process) {
  const comm::CallScope call("broadcast_object");
  return state_->collectives.broadcast_object(value, from_process);
}

// --- progress and logs

EpochRange Accelerator::epochs(int64_t count) {
  state_->checkpointer.resume_if_requested(/*in_epochs=*/true);
  return state_->epochs->range(count);
}

internal::EpochCounter::Work Accelerator::State::work() const {
  internal::EpochCounter::Work work{
      .backward_passes = step->backward_passes(), .updates = step->updates()};
  for (const auto& loader : objects.loaders) {
    work.positions.push_back(active->position_to_save(*loader));
  }
  return work;
}

std::function<ProgressValues()> Accelerator::live_progress() const {
  return [losses = std::weak_ptr<const internal::LossWatch>(state_->losses),
          device = state_->context.device] {
    const std::shared_ptr<const internal::LossWatch> held = losses.lock();
    return held ? internal::progress_values(*held, device) : ProgressValues();
  };
}

void Accelerator::init_trackers(const nlohmann::json& config) {
  state_->trackers.init(config);
  state_->start_recording();
  if (state_->step_recorder.active()) {
    state_->step_recorder.active()->write_config(config);
  }
}

int64_t Accelerator::State::step_or_updates(std::optional<int64_t> given) const {
  const auto& optimizers = objects.optimizers;
  return given ? *given : optimizers.empty() ? 0 : optimizers.front().steps();
}

void Accelerator::log(const std::map<std::string, double>& values, std::optional<int64_t> step) {
  state_->trackers.log(values, state_->step_or_updates(step));
}

void Accelerator::log_images(
    const std::map<std::string, at::Tensor>& images, std::optional<int64_t> step) {
  state_->trackers.log_images(images, state_->step_or_updates(step));
}

void Accelerator::log_histograms(
    const std::map<std::string, at::Tensor>& values, std::optional<int64_t> step) {
  state_->trackers.log_histograms(values, state_->step_or_updates(step));
}

void Accelerator::log_text(
    const std::map<std::string, std::string>& texts, std::optional<int64_t> step) {
  state_->trackers.log_text(texts, state_->step_or_updates(step));
}

void Accelerator::log_tables(
    const std::map<std::string, tracking::Table>& tables, std::optional<int64_t> step) {
  state_->trackers.log_tables(tables, state_->step_or_updates(step));
}

std::shared_ptr<tracking::Tracker> Accelerator::get_tracker(const std::string& name) const {
  return state_->trackers.get(name);
}

void Accelerator::end_training() {
  state_->end_training();
}

void Accelerator::State::end_training() {
  const comm::CallScope call("end_training");
  checkpointer.saver().wait();
  context.group.barrier();
  expect_finished_loop();
  replicas.compare_at_end();
  losses->warn_at_end();
  trackers.finish();
  if (step_recorder.active()) {
    step_recorder.active()->finish();
  }
}

void Accelerator::State::expect_finished_loop() const {
  if (!local_sgds.empty()) {
    throw ConfigError(
        "end_training",
        "a LocalSgd has not ended, so every process has its own parameters; call its finish() "
        "after the loop");
  }
  if (step->backward_passes() > 0 && step->updates() == 0 && !objects.optimizers.empty()) {
    log_warning(fmt::format(
        "the training ends after {} backward passes without an update; call step() of the "
        "optimizer that prepare returned",
        step->backward_passes()));
  }
}

std::unique_ptr<Profile> Accelerator::profile(ProfileOptions options) const {
  const std::filesystem::path& folder = state_->context.options.project_config.logging_dir;
  if (options.output_trace_dir.empty() && !folder.empty()) {
    options.output_trace_dir = folder / "profile";
  }
  return std::make_unique<Profile>(std::move(options), process_index());
}

// --- inputs of different lengths

void Accelerator::join_uneven_inputs(const std::function<void()>& body) {
  join_uneven_inputs(JoinUnevenInputs{}, body);
}

void Accelerator::join_uneven_inputs(
    const JoinUnevenInputs& options, const std::function<void()>& body) {
  CollectiveScope scope = state_->uneven_inputs.begin(options);
  body();
  scope.finish();
}

// --- sharded models, and memory

std::shared_ptr<void> Accelerator::begin_zero_init() {
  const bool shards = state_->objects.uses_zero() && state_->context.options.zero->stage == 3;
  return shards ? state_->zero_init.begin() : nullptr;
}

void Accelerator::finish_zero_init(const NamedTensors& tensors) {
  const internal::PreparedObjects& objects = state_->objects;
  state_->zero_init.finish(tensors, objects.shards_parameters() ? objects.sharding.get() : nullptr);
}

void Accelerator::with_gathered_parameters(
    const std::vector<at::Tensor>& parameters,
    const std::function<void()>& body,
    std::optional<int> modifier_rank) {
  internal::with_gathered_parameters(state_->objects, parameters, body, modifier_rank);
  if (modifier_rank) {
    state_->step->notify(&internal::TrainingStepObserver::equal_changes_made);
  }
}

void Accelerator::offload_states(const OffloadStatesOptions& options) {
  state_->offloader.offload(options);
}

void Accelerator::reload_states(bool non_blocking) {
  state_->offloader.reload(non_blocking);
}

// --- checkpoints

void Accelerator::save_state(const std::filesystem::path& folder, const SaveStateOptions& options) {
  state_->checkpointer.save(folder, options);
}

std::filesystem::path Accelerator::save_state(const SaveStateOptions& options) {
  return state_->checkpointer.save(options);
}

void Accelerator::wait_for_save() {
  state_->checkpointer.saver().wait();
}

void Accelerator::save_model_tensors(
    const NamedTensors& tensors,
    const std::filesystem::path& folder,
    const checkpoint::SaveModelOptions& options) {
  const comm::CallScope call("save_model");
  checkpoint::SaveModelOptions rest = options;
  rest.exclude_frozen_parameters = false;  // `tensors` has none.
  const internal::LoopPartScope scope(*state_->step, tracking::LoopPart::kCheckpoint);
  state_->checkpointer.saver().save_model(tensors, folder, rest);
}

const SaveTimings& Accelerator::last_save() const {
  return state_->checkpointer.saver().timings();
}

void Accelerator::load_state(const std::filesystem::path& folder, const LoadStateOptions& options) {
  state_->checkpointer.load(folder, options);
}

std::filesystem::path Accelerator::load_state() {
  return state_->checkpointer.load_latest();
}

std::optional<std::filesystem::path> Accelerator::resume_latest() {
  const comm::CallScope call("resume_latest");
  return state_->checkpointer.resume_latest();
}

void Accelerator::add_checkpointable(AnyCheckpointable object) {
  state_->checkpointer.registered().add(std::move(object));
}

std::function<void()> Accelerator::register_save_state_pre_hook(SaveStatePreHook hook) {
  return state_->checkpointer.hooks().save_hooks().add(std::move(hook));
}

std::function<void()> Accelerator::register_load_state_pre_hook(LoadStatePreHook hook) {
  return state_->checkpointer.hooks().load_hooks().add(std::move(hook));
}

void Accelerator::request_preemption() {
  state_->checkpointer.preemption().request();
}

}  // namespace lockstep
