// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/training_state/full_values.h"
#include "lockstep/comm/log/comms_log.h"
#include "lockstep/ds_config/ds_config.h"
#include "lockstep/engine/profiler/flops_profiler.h"
#include "lockstep/engine/profiler/module_tree.h"
#include "lockstep/engine/profiler/step_report.h"
#include "lockstep/engine/setup/config_arguments.h"
#include "lockstep/engine/setup/init_distributed.h"
#include "lockstep/engine/state/loss_scale.h"
#include "lockstep/optim/rules/mup.h"
#include "lockstep/zero/activation/activation_checkpointing.h"

namespace lockstep {

/// Options of `initialize`.
struct InitializeOptions {
  /// The ds_config.json; or its text, as `config_json`, possibly in base64; or the command line's,
  /// as `args`. One of them, or else the file that LOCKSTEP_DEEPSPEED_CONFIG_FILE names (`lockstep
  /// launch --deepspeed-config-file`).
  std::filesystem::path config = {};
  std::string config_json = {};
  /// The result of add_config_arguments.
  ConfigArguments args = {};
  /// Replaces the file's optimizer: of lockstep::optim, or with stage 0 of torch::optim.
  std::shared_ptr<torch::optim::Optimizer> optimizer = nullptr;
  /// Creates such an optimizer for `model_parameters`, or all parameters that require gradients.
  std::function<std::shared_ptr<torch::optim::Optimizer>(const std::vector<at::Tensor>& parameters)>
      make_optimizer = nullptr;
  /// Replaces the file's scheduler. One that needs a metric gets it from step({.metric = ...}), at
  /// each update.
  std::optional<AnySchedule> lr_scheduler = std::nullopt;
  /// Creates such a scheduler for its optimizer.
  std::function<AnySchedule(torch::optim::Optimizer& optimizer)> make_lr_scheduler = nullptr;
  /// The parameters of the file's optimizer; empty: all that require gradients. Gradients of other
  /// parameters are ignored, and dropped with each update; under ZeRO, freeze these.
  std::vector<at::Tensor> model_parameters = {};
  /// For the file's MuAdam, MuAdamW and MuSGD: the result of optim::set_base_shapes for the model.
  optim::InfShapes mup_shapes = {};
  /// Options that the file lacks: project_dir, cpu, timeouts. Options that the file has, too
  /// (mixed_precision, zero, gradient_accumulation_steps, grad_scaler, loss_scale_rule, non_finite,
  /// lower_precision_safe_modules) are an error.
  AcceleratorOptions accelerator = {};
  /// Replaces the connection of init_distributed or initialize: ranks as threads, or part of a job.
  using Connected = lockstep::Connected;
  std::optional<lockstep::Connected> connected = std::nullopt;
};

/// The name of a checkpoint's folder: a text, or a number as it is printed.
class CheckpointTag {
 public:
  CheckpointTag(std::string text) : text_(std::move(text)) {}             // NOLINT
  CheckpointTag(const char* text) : text_(text) {}                        // NOLINT
  CheckpointTag(double number) : text_(nlohmann::json(number).dump()) {}  // NOLINT
  CheckpointTag(int64_t number) : text_(std::to_string(number)) {}        // NOLINT
  CheckpointTag(int number) : text_(std::to_string(number)) {}            // NOLINT
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

struct SaveCheckpointOptions {
  /// The program's own state, returned by load_checkpoint; the main process's is saved. `client_sd`
  /// is another name for it.
  nlohmann::json client_state = nullptr;
  nlohmann::json client_sd = nullptr;
  /// Whether to write this tag to `<save_dir>/latest`.
  bool save_latest = true;
  /// Leaves out parameters that require no gradient; load_checkpoint keeps the model's values of
  /// these.
  bool exclude_frozen_parameters = false;
};

/// The states that load_checkpoint loads; others stay unchanged.
struct LoadCheckpointOptions {
  /// Unless set, tensors in only the model or only the checkpoint are skipped, with a warning.
  bool load_module_strict = true;
  /// Includes the dynamic loss scale. Without it, a new accumulation group begins.
  bool load_optimizer_states = true;
  bool load_lr_scheduler_states = true;
  /// Loads only the model's tensors and the client state: no counters, loader positions or random
  /// numbers.
  bool load_module_only = false;
};

struct LoadedCheckpoint {
  std::filesystem::path path;  ///< Empty: nothing was loaded.
  nlohmann::json client_state;
};

/// Options of Engine::backward.
struct EngineBackwardOptions {
  /// Keeps the graph for another backward through it.
  bool retain_graph = false;
  /// Divides the loss by the micro-steps in an update.
  bool scale_wrt_gas = true;
};

/// Options of Engine::step; DeepSpeed's lr_kwargs.
struct StepOptions {
  /// The metric of schedule::reduce_on_plateau: the same on all ranks.
  std::optional<double> metric = std::nullopt;
};

/// The implementation of Engine, independent of the model's type. See Engine for the functions.
class EngineCore : public std::enable_shared_from_this<EngineCore> {
 public:
  /// Casts its arguments as the file says; see cast_model.
  EngineCore(
      InitializeOptions options,
      const NamedTensors& parameters,
      const NamedTensors& buffers,
      const NamedClasses& modules);

  // --- the steps of initialize(), in order
  /// Throws ConfigError once the engine is destroyed.
  Accelerator& accelerator() const;
  const ds_config::DsConfig& config() const { return config_; }
  /// Returns the given optimizer, or the file's, of `parameters`; null if there is neither.
  std::shared_ptr<torch::optim::Optimizer> optimizer_of(NamedTensors parameters);
  void start(
      Optimizer optimizer,
      std::function<std::vector<at::Tensor>()> parameters,
      std::function<ModuleTree()> modules);
  const Optimizer& optimizer() const { return optimizer_; }
  const Scheduler& scheduler() const { return scheduler_; }
  /// The file's micro-batch, shuffled.
  data::LoaderOptions loader_options() const;

  // --- training
  at::Tensor backward(const at::Tensor& loss, const EngineBackwardOptions& options);
  at::Tensor scale(const at::Tensor& loss);
  void step(const StepOptions& options);
  bool is_gradient_accumulation_boundary() const;
  void set_gradient_accumulation_boundary(bool is_boundary) { boundary_ = is_boundary; }
  GradientScope no_sync();
  void coalesce_grad_reduction(const std::function<void()>& body);
  /// Begins a forward of the model; it ends with the returned object.
  class Forward {
   public:
    explicit Forward(EngineCore& core);
    ~Forward();
    Forward(const Forward&) = delete;
    Forward& operator=(const Forward&) = delete;

   private:
    EngineCore& core_;
    ActivationCheckpointing::Scope checkpoints_;
    StepTimers::Clock::time_point began_;
    bool profiled_ = false;
  };

  /// The file's activation_checkpointing; null if it is not used.
  const std::shared_ptr<ActivationCheckpointing>& activation_checkpointing() const {
    return activation_checkpointing_;
  }

  // --- state
  int64_t gradient_accumulation_steps() const { return gradient_accumulation_steps_; }
  int64_t train_micro_batch_size_per_gpu() const { return micro_batch_size_; }
  int64_t train_batch_size() const;
  void set_train_batch_size(int64_t size);
  void set_train_micro_batch_size(int64_t size);
  int64_t global_steps() const { return global_steps_; }
  int64_t global_samples() const { return global_samples_; }
  int64_t skipped_steps() const { return skipped_steps_; }
  int64_t micro_steps() const { return micro_steps_; }
  bool was_step_applied() const { return step_applied_; }
  std::optional<double> get_global_grad_norm() const;
  std::vector<double> get_lr() const;
  std::vector<double> get_mom() const;
  double loss_scale() const;
  std::string log_summary(bool show_straggler);
  /// Throws ConfigError without an optimizer.
  FullValues full_values();

  // --- ending
  void offload_states(const OffloadStatesOptions& options);
  void reload_states(bool non_blocking);
  void destroy();

  // --- checkpoints
  std::filesystem::path save_checkpoint(
      const std::filesystem::path& save_dir,
      std::optional<CheckpointTag> tag,
      const SaveCheckpointOptions& options);
  LoadedCheckpoint load_checkpoint(
      const std::filesystem::path& load_dir,
      std::optional<CheckpointTag> tag,
      const LoadCheckpointOptions& options);
  /// The dtype of save_model's 16-bit weights. ConfigError if neither file nor program says it.
  checkpoint::SaveModelOptions save_16bit_options(
      const std::string& file_name, std::optional<at::ScalarType> dtype) const;

 private:
  void register_hooks();
  void make_given_optimizer(const NamedTensors& parameters);
  void freeze_without_optimizer(const NamedTensors& parameters) const;
  void check_overlap(const AcceleratorOptions& given) const;
  AcceleratorOptions accelerator_options(AcceleratorOptions given);
  void set_precision(AcceleratorOptions& options);
  void set_zero(AcceleratorOptions& options) const;
  void set_low_precision_policy(AcceleratorOptions& options, ZeroPlugin& plugin) const;
  void check_unused() const;
  bool waits() const;
  at::Tensor divided(const char* where, const at::Tensor& loss, bool scale_wrt_gas);
  at::Tensor rooted(const at::Tensor& part) const;
  void add_to_mean(const at::Tensor& part);
  void end_of_backward(StepTimers::Clock::time_point began);
  void begin_scaled(int64_t update);
  void end_scaled();
  void forget_unended();
  void judge_unknown_backward();
  void check_step(const StepOptions& options, bool boundary);
  std::vector<at::Tensor> clipped_parameters() const;
  void update(const StepOptions& options);
  void tell_update();
  bool tells_norm() const;
  /// With memory_breakdown: logs the memory in use `when`.
  void tell_memory(const char* when) const;
  std::string agreed_tag(const std::string& mine);
  bool saves_on_each_host() const;
  bool leads_disk() const;
  std::string first_failure(const std::string& mine);
  void name_latest(const std::filesystem::path& save_dir, const std::string& name);
  std::string agreed_latest(const std::filesystem::path& load_dir);
  nlohmann::json state() const;
  void check_position(const std::string& path) const;
  void load_state(const nlohmann::json& state, const std::string& path, bool with_optimizer);
  void set_loaded_scale();
  int64_t stage() const { return config_.zero.stage.value; }
  /// Used during construction: masters are sharded in stage 0, too, since full ones would take the
  /// memory of two more models on each rank.
  bool divides_masters() const {
    return narrow_ && stage() == 0 && (given_.optimizer || config_.optimizer);
  }
  bool is_profiled() const;
  /// Returns the time after the device has finished its work, if times are reported.
  StepTimers::Clock::time_point now() const;
  StepTimers::Clock::time_point synchronized_now() const;
  StepTimers::Clock::time_point computed_now() const;
  void tell_profile();

  ds_config::DsConfig config_;
  InitializeOptions given_;
  std::shared_ptr<ActivationCheckpointing> activation_checkpointing_;
  bool narrow_ = false;  ///< With fp16 or bf16, some trained parameters are 16-bit.
  std::shared_ptr<DynamicLossScale> loss_scale_;  ///< With fp16 and no fixed scale.
  std::unique_ptr<Accelerator> accelerator_;
  Optimizer optimizer_;
  Scheduler scheduler_;
  bool has_optimizer_ = false;
  bool has_scheduler_ = false;
  bool goes_by_metric_ = false;  ///< The scheduler needs a metric.
  std::function<std::vector<at::Tensor>()> parameters_;
  std::function<ModuleTree()> modules_;

  int64_t gradient_accumulation_steps_ = 1;
  int64_t micro_batch_size_ = 1;
  bool saves_on_each_host_ = false;  ///< With several hosts.
  std::optional<bool> boundary_;     ///< Set by the program instead of counted.
  bool within_no_sync_ = false;
  bool coalescing_ = false;
  bool averaged_ = true;  ///< All existing gradients are averaged.
  int64_t micro_steps_ = 0;
  int64_t global_steps_ = 0;
  int64_t global_samples_ = 0;
  int64_t skipped_steps_ = 0;
  bool step_applied_ = false;
  at::Tensor norm_;
  at::Tensor loss_sum_;      ///< Sum over the micro-steps since the last update, each divided.
  StepTimers micro_timers_;  ///< Since the last step().
  StepTimers timers_;        ///< Of the micro-steps since the last update.
  StepTimers::Clock::time_point computed_at_;  ///< When this rank's last gradient was computed.
  // State of a running backward of a loss from scale().
  bool scaled_under_way_ = false;
  StepTimers::Clock::time_point scaled_began_;
  std::optional<GradientScope> held_;
  std::unique_ptr<StepReport> report_;
  std::shared_ptr<CommsLog> comms_log_;  ///< With comms_logger.
  FlopsProfile profile_;
  nlohmann::json client_state_;  ///< To be saved.
  nlohmann::json loaded_state_;  ///< The engine state of the loaded checkpoint.
  bool loads_position_ = true;   ///< Loading restores the position within an update.
  // Last: their removal functions refer to the Accelerator's lists.
  std::vector<std::function<void()>> remove_hooks_;
};

}  // namespace lockstep
