// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/config/document.h"
#include "lockstep/ds_config/choices.h"
#include "lockstep/ds_config/origin.h"
#include "lockstep/ds_config/parameters.h"

/// DeepSpeed's ds_config.json, read strictly: a key that nobody knows, a value of another type, and
/// an option that Lockstep does not carry out are errors with their place in the file, and all of
/// them are told at once. What becomes of each key says key_table.h. Defaults are DeepSpeed
/// 0.19.8's. No torch here, so that the command line can use it.
namespace lockstep::ds_config {

/// train_batch_size = train_micro_batch_size_per_gpu * gradient_accumulation_steps * world size.
struct BatchSizes {
  Resolved<int64_t> train_batch_size;                ///< Samples an update, of all ranks together.
  Resolved<int64_t> train_micro_batch_size_per_gpu;  ///< Samples a micro-step of one rank.
  Resolved<int64_t> gradient_accumulation_steps;     ///< Micro-steps an update.
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
  Resolved<bool> check_grad_overflow{true};        ///< Leave out updates with an inf or NaN.
  Resolved<bool> master_weights_and_grads{false};  ///< Parameters are their own masters.
  Resolved<bool> optimizer_states{false};          ///< State is bf16, too.
};

struct AutocastSection {
  Resolved<bool> enabled{false};
  Resolved<std::optional<Dtype>> dtype;  ///< kFloat16 or kBfloat16; given if it is enabled.
  /// Classes of modules whose gradients, and in stage 3 parameters, travel in it. Not set: none.
  Resolved<std::optional<std::vector<std::string>>> lower_precision_safe_modules;
};

/// In which dtypes tensors are. Not set: as the model has them.
struct DataTypesSection {
  Resolved<std::optional<Dtype>> param_dtype;       ///< Of what is computed in, or kFloat32.
  Resolved<std::optional<Dtype>> grad_accum_dtype;  ///< kFloat32, or the parameters'.
  Resolved<std::optional<Dtype>> buffer_dtype;
  /// Patterns of buffers' names, of text and *.
  Resolved<std::vector<std::string>> keep_in_fp32_modules;
};

struct OffloadOptimizerSection {
  Resolved<OffloadDevice> device{OffloadDevice::kNone};
  Resolved<std::optional<std::string>> nvme_path;  ///< Given if the device is kNvme.
  Resolved<bool> pin_memory{true};
  Resolved<double> ratio{1};          ///< Part of the state that is offloaded, above 0.
  Resolved<int64_t> buffer_count{4};  ///< With kNvme; of one field of a bucket's state each.
  // With kNvme: whether files are read and written while others are updated; not set: yes.
  Resolved<std::optional<bool>> pipeline_read;
  Resolved<std::optional<bool>> pipeline_write;
  Resolved<bool> super_offload{false};  ///< With kCpu.
};

struct OffloadParamSection {
  Resolved<OffloadDevice> device{OffloadDevice::kNone};
  Resolved<std::optional<std::string>> nvme_path;  ///< Given if the device is kNvme.
  Resolved<bool> pin_memory{true};
  Resolved<int64_t> max_in_cpu{1'000'000'000};  ///< Elements that stay in memory beside kNvme.
};

struct ZeroSection {
  Resolved<int64_t> stage{0};
  /// Elements of the largest bucket of gradients; not set: Lockstep's own 25 MiB.
  Resolved<std::optional<int64_t>> reduce_bucket_size;
  /// Stage 3: elements of parameters that are whole at a time; not set: Lockstep's own.
  Resolved<std::optional<int64_t>> max_live_parameters;
  Resolved<int64_t> param_persistence_threshold{100'000};  ///< Smaller ones stay whole.
  /// Elements that do in all.
  Resolved<int64_t> model_persistence_threshold{std::numeric_limits<int64_t>::max()};
  Resolved<int64_t> prefetch_bucket_size{50'000'000};  ///< 0: nothing comes before it is needed.
  OffloadOptimizerSection offload_optimizer;
  OffloadParamSection offload_param;
  Resolved<int64_t> hpz_partition_size{1};
  Resolved<bool> quantized_weights{false};
  Resolved<bool> quantized_gradients{false};
  Resolved<bool> load_from_fp32_weights{true};  ///< False: from what these round to.
  Resolved<bool> quantized_nontrainable_weights{false};
  Resolved<bool> ignore_unused_parameters{true};
  Resolved<bool> compute_grad_norm{true};  ///< Also where nothing is clipped.
};

/// Of TensorBoard, and of CSV files.
struct MonitorSection {
  Resolved<bool> enabled{false};
  Resolved<std::string> output_path;
  Resolved<std::string> job_name{"DeepSpeedJobName"};
};

struct FlopsProfilerSection {
  Resolved<bool> enabled{false};
  /// How often backward computes forward again, by activation checkpointing: 1 for all of it.
  Resolved<double> recompute_fwd_factor{0};
  Resolved<int64_t> profile_step{1};  ///< Updates before the one that is profiled.
  /// Depths that are summed up: the model alone is 0; -1: all.
  Resolved<int64_t> module_depth{-1};
  Resolved<int64_t> top_modules{1};  ///< Classes of modules that are shown at each of them.
  Resolved<bool> detailed{true};     ///< Show every module, and every operation.
  Resolved<std::optional<std::string>> output_file;  ///< Not set: it is logged.
};

struct CommsLoggerSection {
  Resolved<bool> enabled{false};
  Resolved<bool> verbose{false};
  Resolved<bool> debug{false};
  Resolved<bool> prof_all{true};
  /// Lockstep's names of operations, whatever the file calls them; they count without prof_all.
  Resolved<std::vector<std::string>> prof_ops;
};

/// How the checkpoints of the engine's model keep their inputs until backward.
struct ActivationCheckpointingSection {
  /// Over ranks that share inputs, as model-parallel ones do, of which there is one: says nothing.
  Resolved<bool> partition_activations{false};
  Resolved<bool> contiguous_memory_optimization{false};
  Resolved<bool> cpu_checkpointing{false};
  /// Given with contiguous_memory_optimization: how many a forward has.
  Resolved<std::optional<int64_t>> number_checkpoints;
  Resolved<bool> synchronize_checkpoint_boundary{false};
  Resolved<bool> profile{false};
};

/// A whole file, resolved.
struct DsConfig {
  BatchSizes batch;
  Resolved<bool> managed_gradient_accumulation{true};  ///< False: every step() is an update.

  /// Absent without the section: the program brings its own, or none.
  std::optional<OptimizerSection> optimizer;
  std::optional<SchedulerSection> scheduler;

  /// What the model computes in: that of fp16, bf16 or torch_autocast, else kFloat32.
  Resolved<Dtype> precision{Dtype::kFloat32};
  Fp16Section fp16;
  Bf16Section bf16;
  AutocastSection torch_autocast;
  DataTypesSection data_types;

  /// Largest norm of all gradients; 0: they are not clipped. 1.0 unless the file says otherwise, as
  /// in DeepSpeed 0.19; in 0.16 it was 0.
  Resolved<double> gradient_clipping{1.0};
  Resolved<AllreduceOp> gradient_allreduce_op{AllreduceOp::kMean};
  Resolved<std::optional<Dtype>> communication_data_type;  ///< Not set: that of the gradients.

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
  FlopsProfilerSection flops_profiler;
  CommsLoggerSection comms_logger;
  ActivationCheckpointingSection activation_checkpointing;
};

/// Something about a place in the file: an error, or what a person should know.
struct Diagnostic {
  std::string where;  ///< "path:line:column".
  config::Place place;
  std::string what;
};

struct Reading {
  DsConfig config;                 ///< To be used only if there are no errors.
  std::vector<Diagnostic> errors;  ///< In the file's order; those about all of it come last.
  std::vector<Diagnostic> notes;   ///< Old names, and keys for which there is nothing to do.
};

/// Reads all of it and says all that is wrong. `world_size`: how many ranks share a batch; without
/// one the batch sizes are not resolved, and stay 0.
Reading read_ds_config(const config::Document& document, std::optional<int64_t> world_size);

/// A file as a document: JSON with comments and trailing commas, whatever its name. ConfigError if
/// it cannot be read or is malformed.
config::Document read_ds_document(const std::filesystem::path& path);

/// The same, for who wants the configuration or nothing: one ConfigError with all errors, each a
/// line. Notes are logged, on the main process.
DsConfig resolve_ds_config(const config::Document& document, int64_t world_size);

}  // namespace lockstep::ds_config
