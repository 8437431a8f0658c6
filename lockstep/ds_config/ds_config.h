// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/float_dtype.h"
#include "lockstep/config/document/document.h"
#include "lockstep/ds_config/choices.h"
#include "lockstep/ds_config/layer_specs.h"
#include "lockstep/ds_config/origin.h"
#include "lockstep/ds_config/parameters.h"
#include "lockstep/zero_options/zero_plugin.h"

/// DeepSpeed's ds_config.json, read strictly. Unknown keys, values of another type, and unsupported
/// options are errors with their position in the file, all reported at once. key_table.h describes
/// each key. Defaults are DeepSpeed 0.19.8's. No torch here, so that the command line can use it.
namespace lockstep::ds_config {

/// train_batch_size = train_micro_batch_size_per_gpu * gradient_accumulation_steps * ranks with
/// samples of their own.
struct BatchSizes {
  Resolved<int64_t> train_batch_size;                ///< Samples per update, of all ranks together.
  Resolved<int64_t> train_micro_batch_size_per_gpu;  ///< Samples per micro-step of one rank.
  Resolved<int64_t> gradient_accumulation_steps;     ///< Micro-steps per update.
};

struct Fp16Section {
  Resolved<bool> enabled{false};
  Resolved<double> loss_scale{0};  ///< 0: dynamic.
  Resolved<int64_t> initial_scale_power{16};
  Resolved<int64_t> loss_scale_window{1000};
  Resolved<int64_t> hysteresis{2};
  Resolved<bool> consecutive_hysteresis{false};
  Resolved<int64_t> min_loss_scale{1};
  Resolved<bool> master_weights_and_grads{false};  ///< Parameters are their own masters.
};

struct Bf16Section {
  Resolved<bool> enabled{false};
  Resolved<bool> check_grad_overflow{true};        ///< Skip updates with an inf or NaN.
  Resolved<bool> master_weights_and_grads{false};  ///< Parameters are their own masters.
  Resolved<bool> optimizer_states{false};          ///< State is bf16, too.
};

struct AutocastSection {
  Resolved<bool> enabled{false};
  Resolved<std::optional<FloatDtype>> dtype;  ///< kFloat16 or kBfloat16; given if it is enabled.
  /// Module classes with this communication dtype for gradients and, in stage 3, parameters. Not
  /// set: none.
  Resolved<std::optional<std::vector<std::string>>> lower_precision_safe_modules;
};

/// The dtypes of tensors. Not set: as in the model.
struct DataTypesSection {
  Resolved<std::optional<FloatDtype>> param_dtype;       ///< The compute dtype, or kFloat32.
  Resolved<std::optional<FloatDtype>> grad_accum_dtype;  ///< kFloat32, or the parameters'.
  Resolved<std::optional<FloatDtype>> buffer_dtype;
  /// Patterns of buffer names; * is any text.
  Resolved<std::vector<std::string>> keep_in_fp32_modules;
};

struct ZeroSection {
  /// The values of the keys that Lockstep's ZeRO has, too (rows of zero_options/zero_rows.h with a
  /// ds_key), with DeepSpeed's defaults. Its other members are those of a ZeroPlugin; the engine
  /// sets them (set_zero_options).
  ZeroPlugin plugin{
      .stage = 0,
      .stage3_param_persistence_threshold = 100'000,
      .offload_optimizer = {.buffer_count = 4}};
  /// The origins of these values, by the paths of their keys. None: the default.
  std::map<std::string, Origin> origins;
  Resolved<int64_t> prefetch_bucket_size{50'000'000};  ///< 0: no prefetching.
  Resolved<bool> ignore_unused_parameters{true};
  Resolved<bool> compute_grad_norm{true};  ///< Also without clipping.
};

/// TensorBoard, or CSV files.
struct MonitorSection {
  Resolved<bool> enabled{false};
  Resolved<std::string> output_path;
  Resolved<std::string> job_name{"DeepSpeedJobName"};
};

/// An offline run of Weights & Biases.
struct WandbSection {
  Resolved<bool> enabled{false};
  Resolved<std::optional<std::string>> group;
  Resolved<std::optional<std::string>> team;
  Resolved<std::string> project{"deepspeed"};
};

struct FlopsProfilerSection {
  Resolved<bool> enabled{false};
  /// Part of forward that backward recomputes by activation checkpointing; 1: all.
  Resolved<double> recompute_fwd_factor{0};
  Resolved<int64_t> profile_step{1};  ///< Updates before the one that is profiled.
  /// Largest depth of modules that are summed by class; 0: the model only; -1: all.
  Resolved<int64_t> module_depth{-1};
  Resolved<int64_t> top_modules{1};                  ///< Module classes shown at each depth.
  Resolved<bool> detailed{true};                     ///< Show every module, and every operation.
  Resolved<std::optional<std::string>> output_file;  ///< Not set: the log.
};

struct CommsLoggerSection {
  Resolved<bool> enabled{false};
  Resolved<bool> verbose{false};
  Resolved<bool> debug{false};
  Resolved<bool> prof_all{true};
  /// Lockstep's operation names, converted from the file's; used without prof_all.
  Resolved<std::vector<std::string>> prof_ops;
};

/// Storage of the inputs of activation checkpoints until backward.
struct ActivationCheckpointingSection {
  /// Shards inputs over model-parallel ranks, of which there is one: no effect.
  Resolved<bool> partition_activations{false};
  Resolved<bool> contiguous_memory_optimization{false};
  Resolved<bool> cpu_checkpointing{false};
  /// Required with contiguous_memory_optimization: checkpoints in a forward.
  Resolved<std::optional<int64_t>> number_checkpoints;
  Resolved<bool> synchronize_checkpoint_boundary{false};
  Resolved<bool> profile{false};
};

/// Ranks that divide the layers of a model.
struct TensorParallelSection {
  Resolved<int64_t> autotp_size{0};  ///< 0: as the mesh says.
  Resolved<std::optional<FloatDtype>> dtype;
  Resolved<int64_t> tp_size{1};
  Resolved<std::optional<std::string>> preset_model;
  Resolved<bool> use_default_specs{true};
  Resolved<bool> strict_mode{false};
  Resolved<std::vector<std::string>> lm_head_patterns{{"lm_head", "embed_out"}};
  Resolved<int64_t> partition_tp_size{1};
  /// Those of layer_specs, then of the preset. Not set: the file has neither.
  std::optional<std::vector<LayerSpec>> layers;
};

/// The complete, resolved file.
struct DsConfig {
  BatchSizes batch;
  Resolved<bool> managed_gradient_accumulation{true};  ///< False: every step() is an update.

  /// Absent without the section: the program has its own, or none.
  std::optional<OptimizerSection> optimizer;
  std::optional<SchedulerSection> scheduler;

  /// The compute dtype: that of fp16, bf16 or torch_autocast, else kFloat32.
  Resolved<FloatDtype> precision{FloatDtype::kFloat32};
  Fp16Section fp16;
  Bf16Section bf16;
  AutocastSection torch_autocast;
  DataTypesSection data_types;

  /// Largest norm of all gradients; 0: no clipping. Default 1.0, as in DeepSpeed 0.19; in 0.16 it
  /// was 0.
  Resolved<double> gradient_clipping{1.0};
  Resolved<AllreduceOp> gradient_allreduce_op{AllreduceOp::kMean};
  Resolved<std::optional<FloatDtype>> communication_data_type;  ///< Not set: that of the gradients.

  ZeroSection zero;

  Resolved<std::optional<int64_t>> steps_per_print;
  Resolved<bool> wall_clock_breakdown{false};
  Resolved<bool> memory_breakdown{false};
  Resolved<bool> dump_state{false};
  Resolved<std::optional<std::string>> log_level;
  Resolved<bool> throughput_timer{true};
  Resolved<bool> dataloader_drop_last{false};
  Resolved<TagValidation> tag_validation{TagValidation::kWarn};
  Resolved<bool> use_node_local_storage{false};

  MonitorSection tensorboard;
  MonitorSection csv_monitor;
  WandbSection wandb;
  FlopsProfilerSection flops_profiler;
  CommsLoggerSection comms_logger;
  ActivationCheckpointingSection activation_checkpointing;

  TensorParallelSection tensor_parallel;
  Resolved<int64_t> sequence_parallel_size{1};
  Resolved<std::optional<int64_t>> data_parallel_size;

  /// Returns how many ranks compute a sample together, as the file says.
  int64_t ranks_of_sample() const {
    return std::max<int64_t>(1, tensor_parallel.autotp_size.value) * sequence_parallel_size.value;
  }
};

/// An error or note about a position in the file.
struct Diagnostic {
  std::string where;  ///< "path:line:column".
  config::Place place;
  std::string what;
};

struct Reading {
  DsConfig config;                 ///< Valid only without errors.
  std::vector<Diagnostic> errors;  ///< In the file's order; those about the complete file last.
  std::vector<Diagnostic> notes;   ///< Old names, and ignored keys.
};

/// Reads the document and reports all errors. `world_size`: ranks that share a batch, or divide
/// layers and sequences as the file says; without it the batch sizes are not resolved, and stay 0.
Reading read_ds_config(const config::Document& document, std::optional<int64_t> world_size);

/// Reads a file of any name as JSON with comments and trailing commas. Throws ConfigError if it
/// cannot be read or is malformed.
config::Document read_ds_document(const std::filesystem::path& path);

/// Throws one ConfigError with all errors of a reading, one on each line, if it has any.
void expect_no_errors(const Reading& reading);

/// Returns the configuration, or throws one ConfigError with all errors, one on each line. Notes
/// are logged, on the main process.
DsConfig resolve_ds_config(const config::Document& document, int64_t world_size);

}  // namespace lockstep::ds_config
