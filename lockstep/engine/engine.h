// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/data/loader/loader.h"
#include "lockstep/engine/engine_core.h"
#include "lockstep/zero/activation/activation_checkpoint.h"

namespace lockstep {

/// DeepSpeed's three-call training loop, configured by ds_config.json.
///
///     auto [engine, optimizer, loader, scheduler] =
///         lockstep::initialize(net, {.config = "ds_config.json"}, dataset);
///     for (auto& batch : loader) {
///       auto loss = cross_entropy(engine(batch.data), batch.target);
///       engine.backward(loss);
///       engine.step();
///     }
///
/// - `engine(inputs...)` runs the model's forward in the configured precision. Parameters keep
///   their dtype, unless data_types.param_dtype is set: float32 parameters have no separate master
///   copy; for 16-bit ones, with fp16 or bf16, ranks keep float32 masters, sharded in stage 0, too.
///   With fp16 and bf16, operations compute in that dtype, and a result that is one tensor is
///   returned as float32.
/// - `backward(loss)` divides by the micro-steps in an update, scales with fp16, and averages: at
///   the boundary in stages 0 and 1, after every micro-step in stages 2 and 3.
/// - `step()` counts a micro-step. At the boundary it clips the optimizer's gradients, updates,
///   steps the scheduler unless gradients overflowed, and drops the model's gradients.
///
/// The file is read strictly; see docs/ds_config.md. A handle: copies refer to the same engine. Not
/// thread-safe. After DeepSpeed 0.19's DeepSpeedEngine.
template <ModuleHandle Model>
class Engine {
 public:
  Engine(std::shared_ptr<EngineCore> core, Model model)
      : core_(std::move(core)), model_(std::move(model)) {}

  template <typename... Inputs>
  auto operator()(Inputs&&... inputs) {
    const EngineCore::Forward forward(*core_);
    auto result = [&] {
      auto cast = core_->accelerator().autocast();
      return model_->forward(std::forward<Inputs>(inputs)...);
    }();
    if constexpr (std::is_same_v<decltype(result), at::Tensor>) {
      if (result.is_floating_point() && result.scalar_type() != at::kDouble) {
        result = result.to(at::kFloat);
      }
    }
    return result;
  }
  /// Runs activation_checkpoint with the file's activation_checkpointing, for computations outside
  /// `engine(...)`, which uses these settings anyway.
  std::vector<at::Tensor> checkpoint(
      CheckpointedForward forward,
      const std::vector<at::Tensor>& inputs,
      const std::vector<at::Tensor>& parameters) {
    const ActivationCheckpointing::Scope scope(live()->activation_checkpointing());
    return activation_checkpoint(std::move(forward), inputs, parameters);
  }
  template <typename Module, std::convertible_to<at::Tensor>... Inputs>
  requires requires(const Module& module) { module->parameters(); }
  at::Tensor checkpoint(const Module& module, const Inputs&... inputs) {
    const ActivationCheckpointing::Scope scope(live()->activation_checkpointing());
    return activation_checkpoint(module, inputs...);
  }

  /// Returns the loss divided by the micro-steps in an update, unless `scale_wrt_gas` is false.
  /// ConfigError without an optimizer, and for a loss of several elements.
  at::Tensor backward(const at::Tensor& loss, const EngineBackwardOptions& options = {}) {
    return live()->backward(loss, options);
  }
  /// Returns the loss, divided by the micro-steps in an update and, with fp16, scaled, for a
  /// program that calls .backward() on it: gradients equal those of backward(loss), averaged at the
  /// same points. Once for each update. ConfigError as backward's, and for a loss that depends on
  /// nothing. A backward of another loss is a ConfigError if its gradients would differ: with
  /// accumulation, fp16, bf16.check_grad_overflow, the sum of ranks, or held-back averaging.
  at::Tensor scale(const at::Tensor& loss) { return live()->scale(loss); }
  /// Averages pending gradients, if this is an update, and updates. ConfigError, before any update,
  /// within no_sync(), and if a metric is missing for, or given without, a scheduler that needs
  /// one. Error if a dynamic loss scale overflows at its minimum.
  void step(const StepOptions& options = {}) { live()->step(options); }

  /// Returns whether the current micro-step is the last of the update.
  bool is_gradient_accumulation_boundary() const {
    return live()->is_gradient_accumulation_boundary();
  }
  /// Lets the program set the boundary from now on, instead of the count.
  void set_gradient_accumulation_boundary(bool is_boundary) {
    live()->set_gradient_accumulation_boundary(is_boundary);
  }
  /// RAII scope whose backwards average nothing: the next backward after it does, or else step().
  /// Stages 0 and 1.
  GradientScope no_sync() { return live()->no_sync(); }
  /// Runs `body`, whose backwards send nothing, and then averages all their gradients at once:
  /// several losses for one update, at the cost of one. Stages 1 to 3. Full gradients stay on each
  /// rank meanwhile. Call step() afterwards. If `body` throws, nothing is averaged. Collective.
  /// ConfigError within no_sync(), and with managed_gradient_accumulation false.
  void coalesce_grad_reduction(const std::function<void()>& body) {
    live()->coalesce_grad_reduction(body);
  }

  /// The user's model.
  const Model& module() const { return model_; }
  void train(bool on = true) {
    live();
    model_->train(on);
  }
  void eval() { train(false); }
  Accelerator& accelerator() { return live()->accelerator(); }
  const ds_config::DsConfig& config() const { return live()->config(); }

  int64_t train_batch_size() const { return live()->train_batch_size(); }
  int64_t train_micro_batch_size_per_gpu() const {
    return live()->train_micro_batch_size_per_gpu();
  }
  int64_t gradient_accumulation_steps() const { return live()->gradient_accumulation_steps(); }
  /// Changes the micro-steps in an update. ConfigError unless ranks times micro-batch divide
  /// `size`.
  void set_train_batch_size(int64_t size) { live()->set_train_batch_size(size); }
  /// Sets the micro-batch of later micro-steps; loaders are not changed.
  void set_train_micro_batch_size(int64_t size) { live()->set_train_micro_batch_size(size); }
  int zero_optimization_stage() const {
    return static_cast<int>(live()->config().zero.stage.value);
  }
  /// The number of updates, including those skipped for overflows.
  int64_t global_steps() const { return live()->global_steps(); }
  int64_t global_samples() const { return live()->global_samples(); }
  int64_t skipped_steps() const { return live()->skipped_steps(); }
  int64_t micro_steps() const { return live()->micro_steps(); }
  /// Returns whether the last step() changed the parameters.
  bool was_step_applied() const { return live()->was_step_applied(); }
  /// The gradient norm of the last update, before clipping. Available with clipping, and, from
  /// stage 1 on or with fp16 or bf16, with zero_optimization.compute_grad_norm: each step() then
  /// reads the gradients once more and reduces one number over the ranks. Waits for the device.
  std::optional<double> get_global_grad_norm() const { return live()->get_global_grad_norm(); }
  /// Returns a loader of the configured micro-batch, shuffled, for further data.
  data::LoaderOptions loader_options() const { return live()->loader_options(); }
  /// One for each parameter group.
  std::vector<double> get_lr() const { return live()->get_lr(); }
  /// SGD's momentum, or Adam's first beta; one for each parameter group. Also of torch::optim's.
  std::vector<double> get_mom() const { return live()->get_mom(); }
  /// 1 without fp16.
  double loss_scale() const { return live()->loss_scale(); }

  /// Saves the complete state to `<save_dir>/<tag>`, `global_step<n>` by default, and writes the
  /// tag to `<save_dir>/latest`. Atomic; see docs/checkpoints.md. If the ranks' tags differ,
  /// checkpoint.tag_validation decides; rank 0's counts. Returns the folder. Collective.
  std::filesystem::path save_checkpoint(
      const std::filesystem::path& save_dir,
      std::optional<CheckpointTag> tag = std::nullopt,
      const SaveCheckpointOptions& options = {}) {
    return core_->save_checkpoint(save_dir, std::move(tag), options);
  }
  /// Resumes from `<load_dir>/<tag>`, by default the tag in `latest`, saved by any number of ranks
  /// in any stage. Returns its folder and the client state. Without `latest`: a warning, and an
  /// empty path. Collective. CheckpointError, before anything is changed, for a state that does not
  /// fit.
  LoadedCheckpoint load_checkpoint(
      const std::filesystem::path& load_dir,
      std::optional<CheckpointTag> tag = std::nullopt,
      const LoadCheckpointOptions& options = {}) {
    return core_->load_checkpoint(load_dir, std::move(tag), options);
  }
  /// Writes the full model as one safetensors file, `<save_dir>/<save_filename>`, with
  /// floating-point tensors rounded to 16 bits: to the compute dtype, fp16 or bf16, or to `dtype`.
  /// In every stage; stage 3 gathers one tensor at a time. Atomic; replaces a file of that name.
  /// `exclude_frozen_parameters` leaves out parameters that require no gradient; buffers are
  /// written. Returns true, as DeepSpeed after writing; else it throws. Collective. ConfigError for
  /// a model that computes in float32 without `dtype`, and for a name without the ending
  /// .safetensors.
  bool save_16bit_model(
      const std::filesystem::path& save_dir,
      const std::string& save_filename = "model.safetensors",
      std::optional<at::ScalarType> dtype = std::nullopt,
      bool exclude_frozen_parameters = false) {
    checkpoint::SaveModelOptions options = core_->save_16bit_options(save_filename, dtype);
    options.exclude_frozen_parameters = exclude_frozen_parameters;
    core_->accelerator().save_model(model_, save_dir, options);
    return true;
  }

  /// Moves training states from the device to host memory, and back; see
  /// Accelerator::offload_states.
  void offload_states(const OffloadStatesOptions& options = {}) { live()->offload_states(options); }
  void reload_states(bool non_blocking = false) { live()->reload_states(non_blocking); }
  /// Ends the engine for all its handles: waits for a running save, closes monitors, and frees its
  /// memory. Later calls are a ConfigError, except module(); in stage 3 the model's values are
  /// lost. The program must not use the optimizer any more; memory held by its own handles
  /// (optimizer, loader) is freed with them. Never communicates. A second call does nothing.
  void destroy() { core_->destroy(); }

  /// Logs the costs of this rank's collectives on the main process, and returns them: count, time
  /// and bandwidth by operation and size; see CommsLog. `show_straggler` compares ranks, and is
  /// collective. ConfigError unless comms_logger is enabled.
  std::string log_summary(bool show_straggler = false) {
    return live()->log_summary(show_straggler);
  }

  /// Read and replace the full values of one trained parameter, in every stage: its values in
  /// float32, the averaged gradient (undefined if there is none), or a field of the optimizer's
  /// state. For use between backward and step; gradients without the loss scale, and only after a
  /// backward that averaged (in stages 0 and 1 at the boundary). Collective; see FullValues.
  at::Tensor safe_get_full_fp32_param(const at::Tensor& parameter) {
    return live()->full_values().parameter(parameter);
  }
  at::Tensor safe_get_full_grad(const at::Tensor& parameter) {
    return live()->full_values().gradient(parameter);
  }
  at::Tensor safe_get_full_optimizer_state(
      const at::Tensor& parameter, const std::string& optim_state_key) {
    return live()->full_values().state(parameter, optim_state_key);
  }
  void safe_set_full_fp32_param(const at::Tensor& parameter, const at::Tensor& value) {
    live()->full_values().set_parameter(parameter, value);
  }
  void safe_set_full_grad(const at::Tensor& parameter, const at::Tensor& value) {
    live()->full_values().set_gradient(parameter, value);
  }
  void safe_set_full_optimizer_state(
      const at::Tensor& parameter, const at::Tensor& value, const std::string& optim_state_key) {
    live()->full_values().set_state(parameter, optim_state_key, value);
  }

 private:
  /// Throws ConfigError once it is destroyed.
  EngineCore* live() const {
    core_->accelerator();
    return core_.get();
  }

  std::shared_ptr<EngineCore> core_;
  Model model_;
};

/// Takes the place of a loader if no dataset was given.
struct NoLoader {};

/// Creates an engine for a model: (engine, optimizer, NoLoader, scheduler). Optimizer and scheduler
/// are empty if there is none. The model is cast as data_types says. ConfigError for an invalid
/// configuration, with all its errors. Collective.
template <ModuleHandle Model>
auto initialize(const Model& model, InitializeOptions options) {
  auto core = std::make_shared<EngineCore>(
      std::move(options), parameters_of(*model), buffers_of(*model), classes_of(*model));
  auto plain = core->optimizer_of(parameters_of(*model));
  Optimizer optimizer;
  if (plain) {
    optimizer = std::get<1>(core->accelerator().prepare(model, plain));
  } else {
    core->accelerator().prepare(model);
  }
  core->start(
      std::move(optimizer),
      [model] { return model->parameters(); },
      [model] { return ModuleTree(classes_of(*model), parameters_of(*model)); });
  return std::tuple(Engine<Model>(core, model), core->optimizer(), NoLoader(), core->scheduler());
}

/// Does the same with a loader of `dataset`, in micro-batches, reshuffled each epoch.
template <ModuleHandle Model, typename Dataset>
auto initialize(const Model& model, InitializeOptions options, Dataset dataset) {
  auto [engine, optimizer, none, scheduler] = initialize(model, std::move(options));
  auto loader =
      engine.accelerator().prepare(data::Loader(std::move(dataset), engine.loader_options()));
  return std::tuple(engine, optimizer, loader, scheduler);
}

}  // namespace lockstep
