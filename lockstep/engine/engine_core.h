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
#include "lockstep/comm/comms_log.h"
#include "lockstep/ds_config/ds_config.h"
#include "lockstep/engine/config_arguments.h"
#include "lockstep/engine/profiler/flops_profiler.h"
#include "lockstep/engine/init_distributed.h"
#include "lockstep/engine/loss_scale.h"
#include "lockstep/engine/profiler/module_tree.h"
#include "lockstep/engine/profiler/step_report.h"
#include "lockstep/optim/rules/mup.h"
#include "lockstep/zero/activation/activation_checkpointing.h"

namespace lockstep {

/// What `initialize` takes besides the model.
struct InitializeOptions {
  /// The ds_config.json; or its text, as `config_json`, which may be in base64; or what the command
  /// line names, by `args`. One of them, or else what LOCKSTEP_DEEPSPEED_CONFIG_FILE names
  /// (`lockstep launch --deepspeed-config-file`).
  std::filesystem::path config = {};
  std::string config_json = {};
  /// What add_config_arguments has found.
  ConfigArguments args = {};
  /// Instead of the file's optimizer: of lockstep::optim, or with stage 0 of torch::optim.
  std::shared_ptr<torch::optim::Optimizer> optimizer = nullptr;
  /// The same of what it shall train: `model_parameters`, or all that require gradients.
  std::function<std::shared_ptr<torch::optim::Optimizer>(const std::vector<at::Tensor>& parameters)>
      make_optimizer = nullptr;
  /// Instead of the file's scheduler. One that goes by a metric gets it from step({.metric = ...}),
  /// at each update.
  std::optional<AnySchedule> lr_scheduler = std::nullopt;
  /// The same, of the optimizer that it is for.
  std::function<AnySchedule(torch::optim::Optimizer& optimizer)> make_lr_scheduler = nullptr;
  /// What the file's optimizer trains; empty: all of the model's that require gradients. Others'
  /// gradients count for nothing, and are dropped with each update; under ZeRO, freeze them.
  std::vector<at::Tensor> model_parameters = {};
  /// For the file's MuAdam, MuAdamW and MuSGD: what optim::set_base_shapes gave of the model.
  optim::InfShapes mup_shapes = {};
  /// What the file says nothing of: project_dir, cpu, timeouts. Where both say something
  /// (mixed_precision, zero, gradient_accumulation_steps, grad_scaler, loss_scale_rule, non_finite,
  /// lower_precision_safe_modules) it is an error.
  AcceleratorOptions accelerator = {};
  /// Instead of what init_distributed has met, or initialize meets: ranks as threads, or part of a
  /// job.
  using Connected = lockstep::Connected;
  std::optional<lockstep::Connected> connected = std::nullopt;
};

/// The name of a checkpoint's folder: a text, or a number, as it is written.
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
  /// The program's own, given back by load_checkpoint; the main process's counts. `client_sd` is
  /// another name for it.
  nlohmann::json client_state = nullptr;
  nlohmann::json client_sd = nullptr;
  /// Whether `<save_dir>/latest` shall name this one.
  bool save_latest = true;
  /// Without parameters that require no gradient: load_checkpoint leaves them as the model has
  /// them.
  bool exclude_frozen_parameters = false;
};

/// What load_checkpoint loads. What it does not load stays as it is here.
struct LoadCheckpointOptions {
  /// Unless set, tensors that only the model or only the checkpoint has are left, with a warning.
  bool load_module_strict = true;
  /// With the dynamic loss scale. Without, an update begins.
  bool load_optimizer_states = true;
  bool load_lr_scheduler_states = true;
  /// The model's tensors, and nothing else but the client state: no counters, no positions of
  /// loaders, no random numbers.
  bool load_module_only = false;
};

struct LoadedCheckpoint {
  std::filesystem::path path;  ///< Empty: there was nothing to load.
  nlohmann::json client_state;
};

/// Of Engine::backward.
struct EngineBackwardOptions {
  /// Keep the graph, for another backward through it.
  bool retain_graph = false;
  /// Divide the loss by the micro-steps an update.
  bool scale_wrt_gas = true;
};

/// Of Engine::step; DeepSpeed's lr_kwargs.
struct StepOptions {
  /// What a scheduler watches that goes by a metric, optim::reduce_on_plateau: the same on all
  /// ranks.
  std::optional<double> metric = std::nullopt;
};

/// What an engine is, whatever the type of its model. See Engine, which says what it does.
class EngineCore : public std::enable_shared_from_this<EngineCore> {
 public:
  /// Casts what it is given as the file says; see cast_model.
  EngineCore(
      InitializeOptions options,
      const NamedTensors& parameters,
      const NamedTensors& buffers,
      const NamedClasses& modules);

  // --- what initialize() does, in this order
  /// ConfigError once the engine is destroyed.
  Accelerator& accelerator() const;
  const ds_config::DsConfig& config() const { return config_; }
  /// The given optimizer, or the file's, of `parameters`; null if there is neither.
  std::shared_ptr<torch::optim::Optimizer> optimizer_of(NamedTensors parameters);
  void start(
      Optimizer optimizer,
      std::function<std::vector<at::Tensor>()> parameters,
      std::function<ModuleTree()> modules);
  const Optimizer& optimizer() const { return optimizer_; }
  const Scheduler& scheduler() const { return scheduler_; }
  /// Of the file's micro-batch, shuffled.
  data::LoaderOptions loader_options() const;

  // --- training
  at::Tensor backward(const at::Tensor& loss, const EngineBackwardOptions& options);
  at::Tensor scale(const at::Tensor& loss);
  void step(const StepOptions& options);
  bool is_gradient_accumulation_boundary() const;
  void set_gradient_accumulation_boundary(bool is_boundary) { boundary_ = is_boundary; }
  GradientScope no_sync();
  void coalesce_grad_reduction(const std::function<void()>& body);
  /// A forward of the model, for as long as what it returns lives.
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

  /// Of the file's activation_checkpointing; null if that asks for nothing.
  const std::shared_ptr<ActivationCheckpointing>& activation_checkpointing() const {
    return activation_checkpointing_;
  }

  // --- looking
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
  /// ConfigError without an optimizer.
  FullValues full_values();

  // --- letting go
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
  /// How save_model writes 16-bit weights. ConfigError if nobody says which 16 bits.
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
  /// With memory_breakdown: how much there is in use `when`.
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
  /// While it is made: in stage 0, too, since whole ones would be two more models on each rank.
  bool divides_masters() const {
    return narrow_ && stage() == 0 && (given_.optimizer || config_.optimizer);
  }
  bool is_profiled() const;
  /// Once the device has done what it was given, if anybody looks at times.
  StepTimers::Clock::time_point now() const;
  StepTimers::Clock::time_point synchronized_now() const;
  StepTimers::Clock::time_point computed_now() const;
  void tell_profile();

  ds_config::DsConfig config_;
  InitializeOptions given_;
  std::shared_ptr<ActivationCheckpointing> activation_checkpointing_;
  bool narrow_ = false;  ///< With fp16 or bf16, some parameters are trained in 16 bits.
  std::shared_ptr<DynamicLossScale> loss_scale_;  ///< With fp16 and no fixed scale.
  std::unique_ptr<Accelerator> accelerator_;
  Optimizer optimizer_;
  Scheduler scheduler_;
  bool has_optimizer_ = false;
  bool has_scheduler_ = false;
  bool goes_by_metric_ = false;  ///< The scheduler.
  std::function<std::vector<at::Tensor>()> parameters_;
  std::function<ModuleTree()> modules_;

  int64_t gradient_accumulation_steps_ = 1;
  int64_t micro_batch_size_ = 1;
  bool saves_on_each_host_ = false;  ///< If there are several.
  std::optional<bool> boundary_;     ///< Set by the program instead of counted.
  bool within_no_sync_ = false;
  bool coalescing_ = false;
  bool averaged_ = true;  ///< All gradients that there are.
  int64_t micro_steps_ = 0;
  int64_t global_steps_ = 0;
  int64_t global_samples_ = 0;
  int64_t skipped_steps_ = 0;
  bool step_applied_ = false;
  at::Tensor norm_;
  at::Tensor loss_sum_;      ///< Of the micro-steps since the last update, each divided.
  StepTimers micro_timers_;  ///< Since the last step().
  StepTimers timers_;        ///< Of the micro-steps since the last update.
  StepTimers::Clock::time_point computed_at_;  ///< When this rank's last gradient was there.
  // Of a backward of what scale() gave, while it is under way.
  bool scaled_under_way_ = false;
  StepTimers::Clock::time_point scaled_began_;
  std::optional<GradientScope> held_;
  std::unique_ptr<StepReport> report_;
  std::shared_ptr<CommsLog> comms_log_;  ///< With comms_logger.
  FlopsProfile profile_;
  nlohmann::json client_state_;  ///< To be saved.
  nlohmann::json loaded_state_;  ///< What an engine had said of itself.
  bool loads_position_ = true;   ///< Loading takes over the place in an update.
  // Last: their removal functions refer to the Accelerator's lists.
  std::vector<std::function<void()>> remove_hooks_;
};

}  // namespace lockstep
