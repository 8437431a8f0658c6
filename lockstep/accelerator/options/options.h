// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "lockstep/accelerator/options/non_finite_policy.h"
#include "lockstep/accelerator/options/project_configuration.h"
#include "lockstep/accelerator/options/zero_plugins.h"
#include "lockstep/comm/connect/connect.h"
#include "lockstep/data/sample/random.h"
#include "lockstep/offload/options.h"
#include "lockstep/precision/grad_scaler.h"
#include "lockstep/precision/precision.h"
#include "lockstep/sync/data_parallel.h"
#include "lockstep/tracking/tracker_choice.h"

namespace lockstep {

/// The calls at which a scheduler that is stepped next to its optimizer advances.
enum class SchedulerSteps {
  /// By one for every applied update: schedules count updates, with any number of processes.
  kOptimizerStep,
  /// As Accelerate does: by one for every process, unless batches are split, so that a schedule
  /// counts the batches of all processes.
  kAccelerate
};

/// Options of gradient accumulation; Accelerate's class of that name.
struct GradientAccumulationPlugin {
  int64_t num_steps = 1;
  /// With SchedulerSteps::kAccelerate: micro-steps without an update count towards the end of a
  /// schedule that has one. True if not set, as in Accelerate.
  std::optional<bool> adjust_scheduler = std::nullopt;
  /// The last batch of a loader in use ends an accumulation group of any length. Its gradients
  /// are the mean over its actual number of micro-steps.
  bool sync_with_dataloader = true;
  /// Averages gradients in every micro-step; saves memory for strategies that shard gradients.
  bool sync_each_batch = false;
};

/// Options of ZeRO, which shards training state over the processes. The results equal data
/// parallel's. One model and one optimizer of lockstep::optim, prepared in one call.
struct ZeroPlugin {
  /// 1: shards optimizer state, and gradients from the averaging backward to the update.
  /// Micro-steps that only accumulate keep full gradients and send nothing. 2: always shards
  /// gradients; each micro-step averages its own, and shards are summed. 3: shards parameters too,
  /// including frozen ones; they are unsharded when an operation uses them.
  int stage = 2;
  /// Largest gradient bucket in bytes; smaller ones take less memory. In stage 3 the parameters of
  /// a bucket are unsharded together. None: 25 MiB; in stage 3 a sixteenth of the model, between 1
  /// and 25 MiB.
  std::optional<int64_t> bucket_cap_bytes = std::nullopt;
  /// The same in elements, as in DeepSpeed: of 2 bytes for a model with trained fp16 or bf16
  /// parameters, else 4. Only without bucket_cap_bytes.
  std::optional<int64_t> reduce_bucket_size = std::nullopt;
  /// Stage 3: most unsharded elements at a time, unless one operation needs more. None: as many as
  /// the three largest buckets have.
  std::optional<int64_t> stage3_max_live_parameters = std::nullopt;
  /// Stage 3: parameters of up to this many elements are never sharded.
  int64_t stage3_param_persistence_threshold = 0;
  /// Stage 3: the limit of unsharded elements in all, in the model's order; parameters beyond it
  /// are sharded.
  int64_t stage3_model_persistence_threshold = std::numeric_limits<int64_t>::max();
  /// Stage 3: all-gather the expected next bucket ahead of its use.
  bool stage3_prefetch = true;
  /// Stage 3: the parameters of each module of these classes ("TransformerEncoderLayer", without
  /// namespace and Impl) form one bucket, whatever bucket_cap_bytes is.
  std::vector<std::string> stage3_unit_classes = {};
  /// Stage 3: the format in which save_state writes the parameters. Other stages write full
  /// tensors, except that each process writes its shard of fp32 masters. kFullStateDict cannot
  /// store masters and is refused in every stage with masters.
  StateDictType state_dict_type = StateDictType::kShardedStateDict;
  /// ZeRO++, stage 3: parameters are sent in 8 bits, in blocks of 2048 with a scale each, and
  /// forward and backward use the dequantized values. Updates and checkpoints are exact.
  bool zero_quantized_weights = false;
  /// ZeRO++, stage 3: gradients are sent in 4 bits, in blocks of 512. They are averaged within
  /// groups of zero_hpz_partition_size processes, then between them. If that is 1, the groups are
  /// hosts, if all have the same number of processes.
  bool zero_quantized_gradients = false;
  /// ZeRO++, stage 3: this many consecutive processes keep a secondary shard of the parameters, so
  /// that backward gathers within them. Must divide the number of processes; 0 and 1: none.
  int zero_hpz_partition_size = 1;
  /// ZeRO++, stage 3: each process keeps its shard of the frozen parameters in 8 bits, in blocks of
  /// 2048 with a scale each. A LoRA's base takes a quarter of fp32. They are rounded once, in
  /// prepare(), and saved in that form. Not with offload_param. No effect in one process, as all of
  /// ZeRO++.
  bool zero_quantized_nontrainable_weights = false;
  /// All stages: optimizer state in the host's memory or in files, and the update on the host. Also
  /// in one process.
  OffloadOptimizer offload_optimizer = {};
  /// Stage 3: this process's parameter shards there. Requires offload_optimizer, or a frozen model
  /// prepared without an optimizer.
  OffloadParam offload_param = {};
  /// True: fp16 and bf16 parameters have fp32 masters. False: they are updated in place, in fp32
  /// arithmetic, and rounded after each update, with gradients of their dtype.
  bool fp32_masters = true;
  /// Without masters: true keeps the optimizer's state in fp32; false in the parameters' dtype.
  bool fp32_optimizer_states = true;
  /// With masters: the dtype in which gradients of fp16 and bf16 parameters accumulate: at::kFloat
  /// or the parameters' dtype. None: at::kFloat if averages accumulate (stages 2 and 3), else the
  /// parameters'.
  std::optional<at::ScalarType> grad_accum_dtype = std::nullopt;
  /// The communication dtype of gradients. at::kHalf or at::kBFloat16: fp32 gradients are sent in
  /// it, and accumulate in fp32. at::kFloat: sums of 16-bit gradients that stage 1 accumulates in
  /// fp32 are sent in fp32. None: the parameters' dtype.
  std::optional<at::ScalarType> communication_data_type = std::nullopt;
  /// True: a checkpoint's fp32 weights become the masters of 16-bit parameters. False: their values
  /// rounded to 16 bits do.
  bool load_from_fp32_weights = true;

  bool offloads() const {
    return offload_optimizer.device != OffloadDevice::kNone ||
           offload_param.device != OffloadDevice::kNone;
  }
};

/// Modules whose gradients are sent in 16 bits though their parameters are float32, as in
/// DeepSpeed's torch_autocast; in stage 3 sharded parameters are, too. Updates and checkpoints are
/// exact. Not with comm hooks, nor with ZeRO++ quantization.
struct LowerPrecisionModules {
  /// Class names: "Linear", "torch::nn::LinearImpl", "torch.nn.Linear". Each prepared model must
  /// have all of them. Only a module's own parameters count, not those of its submodules.
  std::vector<std::string> classes = {};
  at::ScalarType dtype = at::kBFloat16;  ///< Or at::kHalf.
};

struct AutocastOptions {
  bool enabled = true;
  /// Keeps casts of weights until the outermost autocast ends.
  bool cache_enabled = true;
};

struct AcceleratorOptions {
  /// Trains on the CPU even if there is a GPU. Not set: ACCELERATE_USE_CPU or LOCKSTEP_USE_CPU,
  /// else a GPU if libtorch has one, by local rank.
  std::optional<bool> cpu = std::nullopt;
  /// Lets prepare() move models, optimizer state and batches to device().
  bool device_placement = true;
  /// The dtype of autocast(). Not set: ACCELERATE_MIXED_PRECISION or LOCKSTEP_MIXED_PRECISION, else
  /// no mixed precision. fp16 scales the loss.
  std::optional<Precision> mixed_precision = std::nullopt;
  AutocastOptions autocast = {};
  GradScalerOptions grad_scaler = {};
  /// With fp16: computes the next scale after an update was applied or skipped for an overflow, in
  /// place of grad_scaler's growth and backoff. The same on every process.
  std::function<double(bool overflowed)> loss_scale_rule = nullptr;
  /// Micro-steps in an update; ACCELERATE_GRADIENT_ACCUMULATION_STEPS overrides it, as in
  /// Accelerate.
  int64_t gradient_accumulation_steps = 1;
  /// Overrides gradient_accumulation_steps.
  std::optional<GradientAccumulationPlugin> gradient_accumulation_plugin = std::nullopt;
  /// Makes Scheduler::step() do nothing in micro-steps without an update.
  bool step_scheduler_with_optimizer = true;
  SchedulerSteps scheduler_steps = SchedulerSteps::kOptimizerStep;
  /// Logs a description of each prepared schedule once.
  bool print_schedules = false;
  NonFinitePolicy non_finite = NonFinitePolicy::kIgnore;
  /// Compares the values that processes pass to gather, reduce, broadcast and pad: structure,
  /// shapes, dtypes. Not set: LOCKSTEP_DEBUG_MODE or ACCELERATE_DEBUG_MODE.
  std::optional<bool> debug = std::nullopt;

  /// Loaders: each batch is split over the processes, instead of each process getting full batches.
  bool split_batches = false;
  /// Loaders: every process gets the same number of batches; the last global batch is filled up
  /// from the start of the epoch.
  bool even_batches = true;
  /// Loaders: the main process reads all batches and sends the other processes theirs.
  bool dispatch_batches = false;
  /// Warns at the first update of several processes if no loader was prepared. False: the program
  /// gives each process its own samples itself.
  bool expect_prepared_loader = true;
  /// Throws in backward if processes leave a training loop over a prepared loader at different
  /// batches, train on different orders, or if only some finish a pass over a test loader. False:
  /// they may, for instance because each process chooses a loader at random.
  bool expect_equal_passes = true;
  /// Random states that are made equal on all processes at the start of every pass over a loader.
  /// Loader orders do not need them: they are functions of seed and epoch.
  std::vector<data::RngType> rng_types = {};

  /// Trackers: names ("tensorboard", "csv", "jsonl", "exec:COMMAND", "mlflow", "wandb", or "all"),
  /// their options (tracking::MlflowOptions), and objects of the program's own classes,
  /// std::make_shared<MyTracker>(), which derive from tracking::Tracker. See docs/trackers.md.
  std::vector<tracking::TrackerChoice> log_with = {};
  /// The folder of named trackers' files and automatic checkpoints; required for either.
  std::filesystem::path project_dir = {};
  /// The folder of this run's logs within project_dir.
  std::string project_name = "logs";
  /// Each process records the times of its steps, losses, learning rates and memory in
  /// `<project_dir>/<project_name>/steps_<rank>.jsonl`, for `lockstep report`. Requires a
  /// project_dir. Not set: LOCKSTEP_RECORD_STEPS, else no.
  std::optional<bool> record_steps = std::nullopt;
  /// The number of checkpoints to keep, the interval of automatic saves, and the folders.
  ProjectConfiguration project_config = {};
  /// With a project_dir: after SIGTERM or SIGUSR1 to any process (or to `lockstep launch`, which
  /// forwards them) all processes call save_state() after the same batch and exit with code 75.
  /// They check about five times a second, and at least every 64 batches. A check is between two
  /// batches of the outermost training loop over a prepared loader, at the end of an accumulation
  /// group. Not within join_uneven_inputs. A SIGTERM two seconds after another ends a process at
  /// once.
  bool save_when_preempted = true;
  /// Called with the checkpoint's folder before the process exits; throw to stay.
  std::function<void(const std::filesystem::path& folder)> on_preempted = nullptr;
  DataParallelOptions data_parallel = {};
  /// Modules whose gradients are sent in 16 bits, with and without ZeRO. Empty: none.
  LowerPrecisionModules lower_precision_safe_modules = {};
  /// Shards optimizer state, gradients and parameters. No effect in one process, unless something
  /// is offloaded. Not with shared_parameters, a comm hook, LocalSgd, or join_uneven_inputs.
  ///
  /// If none of the three is set, the stage is that of LOCKSTEP_ZERO_STAGE (`lockstep launch
  /// --zero-stage`), 0 for data parallel; else that of ACCELERATE_USE_FSDP and FSDP_*, see
  /// fsdp_environment.h.
  std::optional<ZeroPlugin> zero = std::nullopt;
  /// The same options in FSDP's and DeepSpeed's words; at most one of the three.
  std::optional<FsdpPlugin> fsdp_plugin = std::nullopt;
  std::optional<DeepSpeedPlugin> deepspeed_plugin = std::nullopt;
  /// On the CPUs of one host: prepared optimizers (of lockstep::optim) store parameters and state
  /// once, in memory that all processes map. Each process updates its share, which the others read
  /// without a message. The result is bit-exact.
  ///
  /// `Optimizer::step` is collective then. A program that changes parameters itself must do so on
  /// one process, between two barriers. The memory is freed with the Accelerator. Not with
  /// LocalSgd, nor join_uneven_inputs.
  bool shared_parameters = false;
  /// Not set: LOCKSTEP_TIMEOUT_MS and LOCKSTEP_JOIN_TIMEOUT_MS.
  ConnectOptions connect = ConnectOptions::from_environment(Environment::process());
};

}  // namespace lockstep
