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

/// DeepSpeed's engine: a training loop of three calls that a ds_config.json steers.
///
///     auto [engine, optimizer, loader, scheduler] =
///         lockstep::initialize(net, {.config = "ds_config.json"}, dataset);
///     for (auto& batch : loader) {
///       auto loss = cross_entropy(engine(batch.data), batch.target);
///       engine.backward(loss);
///       engine.step();
///     }
///
/// - `engine(inputs...)` runs the model's forward in the configured precision. Parameters stay as
///   wide as they are, unless data_types.param_dtype says otherwise: float32 ones are their own
///   master copy; of 16-bit ones, with fp16 or bf16, ranks keep float32 masters, divided in stage
///   0, too. With fp16 and bf16, operations compute in these, and a result that is one tensor comes
///   back as float32.
/// - `backward(loss)` divides by the micro-steps an update, scales with fp16, and averages: at the
///   boundary in stages 0 and 1, after every micro-step in stages 2 and 3.
/// - `step()` counts a micro-step; at the boundary it clips what the optimizer trains, updates,
///   steps the scheduler unless gradients had overflowed, and drops the gradients of the model.
///
/// The file is read strictly; see docs/ds_config.md. A handle: copies are the same engine. Thread
/// safety: none. After DeepSpeed 0.19's DeepSpeedEngine.
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
  /// activation_checkpoint by the file's activation_checkpointing, as it is within `engine(...)`
  /// anyway: for what a program computes outside of it.
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

  /// Returns the loss divided by the micro-steps an update, unless `scale_wrt_gas` is false.
  /// ConfigError without an optimizer, and for a loss of several numbers.
  at::Tensor backward(const at::Tensor& loss, const EngineBackwardOptions& options = {}) {
    return live()->backward(loss, options);
  }
  /// The loss, divided by the micro-steps an update and, with fp16, scaled, for a program that
  /// calls .backward() on it itself: the gradients are those of backward(loss), averaged where
  /// they would be. Once for each update. ConfigError as backward's, and for a loss that depends on
  /// nothing. A backward of a loss that is not from here is a ConfigError where its gradients would
  /// be others: with accumulation, fp16, bf16.check_grad_overflow, the sum of ranks, or where they
  /// are to wait.
  at::Tensor scale(const at::Tensor& loss) { return live()->scale(loss); }
  /// Averages what backwards have left on the ranks, if it is an update. ConfigError, before
  /// anything is updated, within no_sync(), and if a scheduler that goes by a metric gets none, or
  /// another one does. Error if a dynamic loss scale overflows at its minimum.
  void step(const StepOptions& options = {}) { live()->step(options); }

  /// Whether the current micro-step is the update's last.
  bool is_gradient_accumulation_boundary() const {
    return live()->is_gradient_accumulation_boundary();
  }
  /// From now on the program says where an update ends, instead of the count.
  void set_gradient_accumulation_boundary(bool is_boundary) {
    live()->set_gradient_accumulation_boundary(is_boundary);
  }
  /// Backwards within the scope average nothing: the next one after it does, or else step().
  /// Stages 0 and 1.
  GradientScope no_sync() { return live()->no_sync(); }
  /// Runs `body`, whose backwards send nothing, and then averages all their gradients at once:
  /// several losses for one update, at the cost of one. Stages 1 to 3. Gradients stay whole on each
  /// rank meanwhile. step() comes after it. If `body` throws, nothing is averaged. Collective.
  /// ConfigError within no_sync(), and with managed_gradient_accumulation false.
  void coalesce_grad_reduction(const std::function<void()>& body) {
    live()->coalesce_grad_reduction(body);
  }

  /// The model itself.
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
  /// Changes the micro-steps an update. ConfigError unless ranks times micro-batch divide it.
  void set_train_batch_size(int64_t size) { live()->set_train_batch_size(size); }
  /// What the program feeds from now on; loaders stay as they are.
  void set_train_micro_batch_size(int64_t size) { live()->set_train_micro_batch_size(size); }
  int zero_optimization_stage() const {
    return static_cast<int>(live()->config().zero.stage.value);
  }
  /// Updates, those left out for overflows included.
  int64_t global_steps() const { return live()->global_steps(); }
  int64_t global_samples() const { return live()->global_samples(); }
  int64_t skipped_steps() const { return live()->skipped_steps(); }
  int64_t micro_steps() const { return live()->micro_steps(); }
  /// Whether the last step() changed the parameters.
  bool was_step_applied() const { return live()->was_step_applied(); }
  /// Of the last update, before clipping; nothing if nothing is clipped, unless from stage 1 on or
  /// with fp16 or bf16, and zero_optimization.compute_grad_norm: then it is computed in each
  /// step(), which reads the gradients once more and adds up a number over the ranks. Waits for the
  /// device.
  std::optional<double> get_global_grad_norm() const { return live()->get_global_grad_norm(); }
  /// Of the configured micro-batch, shuffled: for loaders of more data.
  data::LoaderOptions loader_options() const { return live()->loader_options(); }
  /// One a parameter group.
  std::vector<double> get_lr() const { return live()->get_lr(); }
  /// SGD's momentum, or Adam's first beta; one a parameter group. Of torch::optim's, too.
  std::vector<double> get_mom() const { return live()->get_mom(); }
  /// 1 without fp16.
  double loss_scale() const { return live()->loss_scale(); }

  /// Saves everything to `<save_dir>/<tag>`, `global_step<n>` by default, and lets
  /// `<save_dir>/latest` name it. Whole or absent; see docs/checkpoints.md. Ranks whose tags differ
  /// go by checkpoint.tag_validation; rank 0's counts. Returns the folder. Collective.
  std::filesystem::path save_checkpoint(
      const std::filesystem::path& save_dir,
      std::optional<CheckpointTag> tag = std::nullopt,
      const SaveCheckpointOptions& options = {}) {
    return core_->save_checkpoint(save_dir, std::move(tag), options);
  }
  /// Goes on from `<load_dir>/<tag>`, by default what `latest` names; saved by any number of ranks
  /// in any stage. Returns its folder and the client state. Without `latest`: a warning, and an
  /// empty path. Collective. CheckpointError, before anything is changed, for what does not fit.
  LoadedCheckpoint load_checkpoint(
      const std::filesystem::path& load_dir,
      std::optional<CheckpointTag> tag = std::nullopt,
      const LoadCheckpointOptions& options = {}) {
    return core_->load_checkpoint(load_dir, std::move(tag), options);
  }
  /// Writes the whole model as one safetensors file, `<save_dir>/<save_filename>`, floating-point
  /// tensors rounded to 16 bits: to what the model computes in, fp16 or bf16, or to `dtype`. In
  /// every stage; in stage 3 each tensor is whole when it is its turn. Whole or absent; one of that
  /// name is replaced. `exclude_frozen_parameters`: without those that require no gradient; buffers
  /// stay. Returns true, as DeepSpeed where it has written; else it throws. Collective.
  /// ConfigError for a model that computes in float32 without `dtype`, and for a name without
  /// the ending .safetensors.
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

  /// Takes what the run keeps on the device to the host's memory, and back; see
  /// Accelerator::offload_states.
  void offload_states(const OffloadStatesOptions& options = {}) { live()->offload_states(options); }
  void reload_states(bool non_blocking = false) { live()->reload_states(non_blocking); }
  /// Ends the engine: waits for a save under way, closes monitors, and lets go of all that it
  /// holds, whoever has another handle to it. What is used of it after that is a ConfigError, but
  /// for module(); in stage 3 the model's values are gone. Its optimizer is not to be used any
  /// more; what memory the program's own handles hold (optimizer, loader) goes with them. Never
  /// communicates. Again: does nothing.
  void destroy() { core_->destroy(); }

  /// Logs, on the main process, what this rank's collectives have cost so far, and returns it: by
  /// operation and size how many, their time, and their bandwidth; see CommsLog. `show_straggler`
  /// compares ranks, and is collective. ConfigError unless comms_logger is enabled.
  std::string log_summary(bool show_straggler = false) {
    return live()->log_summary(show_straggler);
  }

  /// Of one trained parameter, whole, in every stage: its values in float32, the averaged gradient
  /// (undefined if there is none), a field of the optimizer's state; and what shall be in their
  /// place. For looking and editing between backward and step; gradients without the loss scale,
  /// and only where the last backward averaged (in stages 0 and 1 the boundary's). Collective; see
  /// FullValues.
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
  /// ConfigError once it is destroyed.
  EngineCore* live() const {
    core_->accelerator();
    return core_.get();
  }

  std::shared_ptr<EngineCore> core_;
  Model model_;
};

/// In the place of a loader, where no dataset was given.
struct NoLoader {};

/// Makes an engine of a model: (engine, optimizer, NoLoader, scheduler). Both are empty if there is
/// none. The model is cast as data_types says. ConfigError for a configuration that makes no sense,
/// with all that is wrong. Collective.
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

/// The same with a loader of `dataset`, in micro-batches, shuffled anew each epoch.
template <ModuleHandle Model, typename Dataset>
auto initialize(const Model& model, InitializeOptions options, Dataset dataset) {
  auto [engine, optimizer, none, scheduler] = initialize(model, std::move(options));
  auto loader =
      engine.accelerator().prepare(data::Loader(std::move(dataset), engine.loader_options()));
  return std::tuple(engine, optimizer, loader, scheduler);
}

}  // namespace lockstep
