// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/backward/collective_scope.h"
#include "lockstep/data/loader/loader_core.h"
#include "lockstep/ds_config/ds_config.h"
#include "lockstep/engine/checkpoint/checkpoint_options.h"
#include "lockstep/engine/step/engine_call_options.h"
#include "lockstep/zero/activation/activation_checkpoint.h"
#include "lockstep/zero/activation/activation_checkpointing.h"

namespace lockstep {

struct EngineContext;

/// The calls of an Engine that do not depend on the model's type.
///
/// A handle: copies refer to the same engine. After destroy() every call is a ConfigError.
/// Modelled on DeepSpeed 0.19's DeepSpeedEngine.
class EngineCore {
  struct Parts;

 public:
  // --- training
  /// Runs activation_checkpoint() with ds_config.json's activation_checkpointing section. Needed
  /// only outside `engine(...)`, which applies the section itself.
  std::vector<at::Tensor> checkpoint(
      CheckpointedForward forward,
      const std::vector<at::Tensor>& inputs,
      const std::vector<at::Tensor>& parameters);
  template <typename Module, std::convertible_to<at::Tensor>... Inputs>
  requires requires(const Module& module) { module->parameters(); }
  at::Tensor checkpoint(const Module& module, const Inputs&... inputs) {
    const ActivationCheckpointing::Scope scope(activation_checkpointing());
    return activation_checkpoint(module, inputs...);
  }

  /// Computes gradients, and averages them at the boundary (stages 0 and 1) or always (2 and 3).
  /// Returns the loss divided by the micro-steps in an update, unless `scale_wrt_gas` is false.
  /// Throws ConfigError without an optimizer, and for a loss of several elements.
  at::Tensor backward(const at::Tensor& loss, const EngineBackwardOptions& options = {});
  /// Returns the loss, divided by the micro-steps in an update and, with fp16, scaled. Call
  /// .backward() on it before the next update; after an update scale again. Gradients equal those
  /// of backward(loss), and are averaged at the same points. Throws ConfigError as backward(), and
  /// for a loss without a graph. A backward of another loss throws ConfigError if its gradients
  /// would differ: with accumulation, fp16, bf16.check_grad_overflow, gradient_allreduce_op sum, or
  /// where averaging is deferred (before the boundary, within no_sync()).
  at::Tensor scale(const at::Tensor& loss);
  /// Ends a micro-step, and at the boundary clips, updates, and steps the scheduler. Throws
  /// ConfigError, before any update, within no_sync(), for a missing metric, and for a metric
  /// without a scheduler that needs one. Throws Error if a dynamic loss scale overflows at its
  /// minimum.
  void step(const EngineStepOptions& options = {});
  /// Returns whether the current micro-step is the last of the update.
  bool is_gradient_accumulation_boundary() const;
  /// Sets the boundary: from now on `is_boundary` decides, not the count of micro-steps.
  void set_gradient_accumulation_boundary(bool is_boundary);
  /// Opens an RAII scope in which backward averages nothing. After the scope the next backward at
  /// the boundary averages, or step() if none follows. Throws ConfigError in stages 2 and 3.
  GradientScope no_sync();
  /// Runs `body`, whose backward passes send nothing, and then averages all their gradients at
  /// once: several losses for one update, at the communication cost of one. Call step() afterwards.
  /// Full gradients stay on each rank meanwhile. If `body` throws, nothing is averaged. Collective.
  /// Throws ConfigError in stage 0, within no_sync(), and with managed_gradient_accumulation false.
  void coalesce_grad_reduction(const std::function<void()>& body);
  /// Begins such a block; the scope's finish() ends it.
  CollectiveScope begin_coalescing();

  // --- configuration and counts
  Accelerator& accelerator() const;
  const ds_config::DsConfig& config() const;
  int64_t train_batch_size() const;
  int64_t train_micro_batch_size_per_gpu() const;
  int64_t gradient_accumulation_steps() const;
  /// Changes the micro-steps in an update. Throws ConfigError unless ranks times micro-batch divide
  /// `size`.
  void set_train_batch_size(int64_t size);
  /// Sets the micro-batch of later micro-steps; loaders are not changed.
  void set_train_micro_batch_size(int64_t size);
  int zero_optimization_stage() const;
  /// Returns the number of updates, including those skipped for overflows.
  int64_t global_steps() const;
  int64_t global_samples() const;
  int64_t skipped_steps() const;
  int64_t micro_steps() const;
  /// Returns whether the last step() changed the parameters.
  bool was_step_applied() const;
  /// Returns the gradient norm of the last update, before clipping. It is measured if
  /// gradient_clipping is set. Without clipping it is measured if
  /// zero_optimization.compute_grad_norm is true and the stage is 1 to 3, or fp16 or bf16 is
  /// enabled. Otherwise returns nullopt. Measuring costs each step() one more read of the
  /// gradients, and a reduction of one number over the ranks. Waits for the device.
  std::optional<double> get_global_grad_norm() const;
  /// Returns options of a loader for another dataset, such as validation data: the configured
  /// micro-batch, shuffled.
  data::LoaderOptions loader_options() const;
  /// Returns the learning rate of each parameter group.
  std::vector<double> get_lr() const;
  /// Returns SGD's momentum, or Adam's first beta, of each parameter group. Also of torch::optim's.
  std::vector<double> get_mom() const;
  /// Returns 1 without fp16.
  double loss_scale() const;

  // --- checkpoints
  /// Saves the complete state to `<save_dir>/<tag>`, `global_step<n>` by default, and writes the
  /// tag to `<save_dir>/latest`. Atomic; see docs/checkpoints.md. If the ranks' tags differ,
  /// checkpoint.tag_validation decides whether that is ignored, warned of or an error; rank 0's tag
  /// is used. Returns the folder. Collective.
  std::filesystem::path save_checkpoint(
      const std::filesystem::path& save_dir,
      const std::optional<CheckpointTag>& tag = std::nullopt);
  /// Does the same with options; the caller includes <nlohmann/json.hpp>.
  std::filesystem::path save_checkpoint(
      const std::filesystem::path& save_dir,
      const std::optional<CheckpointTag>& tag,
      const SaveCheckpointOptions& options);
  /// Resumes from `<load_dir>/<tag>`, by default the tag in `latest`, saved by any number of ranks
  /// in any stage. Returns its folder and the client state. Without `latest`: a warning, and an
  /// empty path. The caller includes <nlohmann/json.hpp>. Collective. Throws CheckpointError,
  /// before anything is changed, for a state that does not fit.
  LoadedCheckpoint load_checkpoint(
      const std::filesystem::path& load_dir,
      const std::optional<CheckpointTag>& tag = std::nullopt,
      const LoadCheckpointOptions& options = {});

  // --- full values
  /// Read and replace the full values of one trained parameter, in every stage: its float32 values,
  /// its averaged gradient (undefined if there is none), or a field of its optimizer state. For use
  /// between backward and step. Gradients are without the loss scale, and need a backward that
  /// averaged (in stages 0 and 1 at the boundary). Collective; see FullValues.
  at::Tensor safe_get_full_fp32_param(const at::Tensor& parameter);
  at::Tensor safe_get_full_grad(const at::Tensor& parameter);
  at::Tensor safe_get_full_optimizer_state(
      const at::Tensor& parameter, const std::string& optim_state_key);
  void safe_set_full_fp32_param(const at::Tensor& parameter, const at::Tensor& value);
  void safe_set_full_grad(const at::Tensor& parameter, const at::Tensor& value);
  void safe_set_full_optimizer_state(
      const at::Tensor& parameter, const at::Tensor& value, const std::string& optim_state_key);

  // --- memory, costs, end
  /// Moves training states from the device to host memory; see Accelerator::offload_states.
  void offload_states(const OffloadStatesOptions& options = {}) {
    accelerator().offload_states(options);
  }
  /// Moves the states back.
  void reload_states(bool non_blocking = false) { accelerator().reload_states(non_blocking); }
  /// Returns a table of this rank's collectives; the main process also logs its own. The table has
  /// count, time and bandwidth by operation and size; see CommsLog. `show_straggler` compares
  /// ranks, and is collective. Throws ConfigError unless comms_logger is enabled.
  std::string log_summary(bool show_straggler = false);
  /// Ends the engine for all its handles: waits for a running save, closes monitors, and frees its
  /// memory. Later calls are a ConfigError, except module(); in stage 3 the model's values are
  /// lost. The program must not use the optimizer any more; memory held by its own handles
  /// (optimizer, loader) is freed with them. Never communicates. A second call does nothing.
  void destroy();

 protected:
  explicit EngineCore(std::shared_ptr<EngineContext> context);

  /// RAII scope of one forward of the model: measures it, and applies the file's
  /// activation_checkpointing.
  class Forward {
   public:
    explicit Forward(const EngineCore& core);
    ~Forward();
    Forward(const Forward&) = delete;
    Forward& operator=(const Forward&) = delete;

   private:
    std::weak_ptr<Parts> parts_;
    ActivationCheckpointing::Scope checkpointing_;
    std::chrono::steady_clock::time_point began_;
    bool profiled_ = false;  ///< flops_profiler profiles this micro-step.
  };
  /// Returns null if the file sets no option.
  std::shared_ptr<ActivationCheckpointing> activation_checkpointing() const;

 private:
  /// Returns the engine's parts. Throws ConfigError after destroy().
  std::shared_ptr<Parts> live() const { return live(parts_); }
  static std::shared_ptr<Parts> live(const std::shared_ptr<std::shared_ptr<Parts>>& parts);
  /// Returns the engine's context. Throws ConfigError after destroy().
  EngineContext& context() const;

  /// Shared by all handles; holds null once the engine is destroyed.
  std::shared_ptr<std::shared_ptr<Parts>> parts_;
};

}  // namespace lockstep
