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
#include "lockstep/comm/connect.h"
#include "lockstep/data/dataset/random.h"
#include "lockstep/offload/options.h"
#include "lockstep/precision/grad_scaler.h"
#include "lockstep/precision/precision.h"
#include "lockstep/sync/data_parallel.h"
#include "lockstep/tracking/tracker_choice.h"

namespace lockstep {

/// When a scheduler that is stepped beside its optimizer advances.
enum class SchedulerSteps {
  /// By one with every update that is applied: schedules count updates, on any number of processes.
  kOptimizerStep,
  /// As Accelerate does: by one for every process, unless batches are split, so that a schedule
  /// counts batches of one process over all processes.
  kAccelerate
};

/// How gradients are accumulated; Accelerate's class of that name.
struct GradientAccumulationPlugin {
  int64_t num_steps = 1;
  /// With SchedulerSteps::kAccelerate: micro-steps without an update count towards the end of a
  /// schedule that has one. True if not set, as in Accelerate.
  std::optional<bool> adjust_scheduler = std::nullopt;
  /// The last batch of the innermost loader ends a group, however many it has. Its gradients are
  /// then those of the mean over the micro-steps it really had.
  bool sync_with_dataloader = true;
  /// Gradients travel in every micro-step; less memory for strategies that shard gradients.
  bool sync_each_batch = false;
};

/// ZeRO: what of the training each process has only a part of. Numbers are those of data parallel.
/// One model and one optimizer of lockstep::optim, prepared in one call.
struct ZeroPlugin {
  /// 1: optimizer state, and gradients from one backward that averages to the update. Micro-steps
  /// that only accumulate keep whole gradients and send nothing.
  /// 2: gradients always; each micro-step averages its own, and they are added up in parts.
  /// 3: parameters too, frozen ones included: they come when an operation touches them.
  int stage = 2;
  /// Largest bucket of gradients that travels at a time; smaller ones take less memory. In stage 3
  /// a bucket's parameters come and go together. None: 25 MiB; in stage 3 a sixteenth of the model,
  /// between 1 and 25 MiB.
  std::optional<int64_t> bucket_cap_bytes = std::nullopt;
  /// Stage 3: most elements of parameters that are whole at a time, unless one operation wants
  /// more. None: as many as the three largest buckets have.
  std::optional<int64_t> stage3_max_live_parameters = std::nullopt;
  /// Stage 3: parameters of up to so many elements are whole all the time.
  int64_t stage3_param_persistence_threshold = 0;
  /// Stage 3: but no more than so many elements in all, in the model's order; a parameter for which
  /// there is no room left is divided.
  int64_t stage3_model_persistence_threshold = std::numeric_limits<int64_t>::max();
  /// Stage 3: start to bring the bucket that came next the last time before it is needed.
  bool stage3_prefetch = true;
  /// Stage 3: the parameters of each module of these classes ("TransformerEncoderLayer", without
  /// namespace and Impl) come and go together, whatever bucket_cap_bytes says.
  std::vector<std::string> stage3_unit_classes = {};
  /// Stage 3: how save_state writes the parameters. Other stages write them whole, but for those
  /// with fp32 masters, of which each process writes its part. kFullStateDict has no place for
  /// masters, and is refused in every stage where there are any.
  StateDictType state_dict_type = StateDictType::kShardedStateDict;
  /// ZeRO++, stage 3: parameters travel in 8 bits, in blocks of 2048 with a scale each, and are
  /// computed with as they arrive. What is updated and saved is exact.
  bool zero_quantized_weights = false;
  /// ZeRO++, stage 3: gradients travel in 4 bits, in blocks of 512: averaged within hosts of
  /// zero_hpz_partition_size processes (if that is 1, of as many as there are on each host, if
  /// these are equally many), then between them.
  bool zero_quantized_gradients = false;
  /// ZeRO++, stage 3: so many processes, one after the other, keep a second copy of the parameters
  /// together, so that backward brings them from these alone. Must divide the number of processes;
  /// 0 and 1: none.
  int zero_hpz_partition_size = 1;
  /// ZeRO++, stage 3: each process keeps its part of the frozen parameters in 8 bits, as they
  /// travel, in blocks of 2048 with a scale each: a LoRA's base takes a quarter of fp32 then. They
  /// are rounded once, in prepare(), and saved as they are from then on. Not with offload_param. As
  /// all of ZeRO++, nothing in one process.
  bool zero_quantized_nontrainable_weights = false;
  /// All stages: the optimizer's state in the host's memory or in files, and the update on the
  /// host. In one process, too.
  OffloadOptimizer offload_optimizer = {};
  /// Stage 3: this process's part of the parameters there. Together with offload_optimizer, or of a
  /// frozen model prepared without an optimizer.
  OffloadParam offload_param = {};
  /// Parameters of fp16 and bf16 have fp32 masters. Unless: they are updated themselves, in fp32,
  /// and rounded after each update, with gradients of their dtype.
  bool fp32_masters = true;
  /// Without masters: the optimizer's state is fp32 all the same; else of the parameters' dtype.
  bool fp32_optimizer_states = true;
  /// With masters: what micro-steps' gradients of parameters of fp16 and bf16 add up in: at::kFloat
  /// or the parameters' dtype. None: at::kFloat if averages add up (stages 2 and 3), else the
  /// parameters'.
  std::optional<at::ScalarType> grad_accum_dtype = std::nullopt;
  /// at::kHalf or at::kBFloat16: gradients of parameters of fp32 travel so, and add up in fp32.
  /// at::kFloat: sums of stage 1 that have added up so, of 16-bit ones, travel so. None: gradients
  /// travel in the parameters' dtype.
  std::optional<at::ScalarType> communication_data_type = std::nullopt;
  /// What a checkpoint's fp32 weights make of 16-bit parameters' masters: their values; or, if not,
  /// what these round to.
  bool load_from_fp32_weights = true;

  bool offloads() const {
    return offload_optimizer.device != OffloadDevice::kNone ||
           offload_param.device != OffloadDevice::kNone;
  }
};

/// Modules whose gradients travel in 16 bits though their parameters are float32, as DeepSpeed's
/// torch_autocast has them; in stage 3 the parameters do, too, unless they are kept whole. What is
/// updated and saved is exact. Not with comm hooks, nor where ZeRO++ rounds.
struct LowerPrecisionModules {
  /// "Linear", "torch::nn::LinearImpl", "torch.nn.Linear"; each prepared model has all of them. Of
  /// parameters that such a module has itself, and not of those within it.
  std::vector<std::string> classes = {};
  at::ScalarType dtype = at::kBFloat16;  ///< Or at::kHalf.
};

struct AutocastOptions {
  bool enabled = true;
  /// Keep casts of weights until the outermost autocast ends.
  bool cache_enabled = true;
};

struct AcceleratorOptions {
  /// Train on the CPU even where there is a GPU. Not set: ACCELERATE_USE_CPU or LOCKSTEP_USE_CPU,
  /// else a GPU if libtorch has one, each process of a host the next.
  std::optional<bool> cpu = std::nullopt;
  /// Whether prepare() moves models, optimizer state and batches to device().
  bool device_placement = true;
  /// What autocast() computes in. Not set: ACCELERATE_MIXED_PRECISION or LOCKSTEP_MIXED_PRECISION,
  /// else no mixed precision. fp16 scales the loss.
  std::optional<Precision> mixed_precision = std::nullopt;
  AutocastOptions autocast = {};
  GradScalerOptions grad_scaler = {};
  /// With fp16: what the scale becomes after an update was made, or left out for an overflow,
  /// instead of what grad_scaler's growth and backoff say. The same on every process.
  std::function<double(bool overflowed)> loss_scale_rule = nullptr;
  /// Micro-steps an update; ACCELERATE_GRADIENT_ACCUMULATION_STEPS overrides it, as in Accelerate.
  int64_t gradient_accumulation_steps = 1;
  /// Instead of gradient_accumulation_steps.
  std::optional<GradientAccumulationPlugin> gradient_accumulation_plugin = std::nullopt;
  /// Whether Scheduler::step() belongs to the update: held back where the update is.
  bool step_scheduler_with_optimizer = true;
  SchedulerSteps scheduler_steps = SchedulerSteps::kOptimizerStep;
  /// Say each prepared schedule in words once.
  bool print_schedules = false;
  NonFinitePolicy non_finite = NonFinitePolicy::kIgnore;
  /// Compare what every process passes to gather, reduce, broadcast and pad: structure, shapes,
  /// dtypes. LOCKSTEP_DEBUG_MODE or ACCELERATE_DEBUG_MODE if not set.
  std::optional<bool> debug = std::nullopt;

  /// Loaders: a batch is cut into one slice a process, instead of each process getting whole
  /// batches.
  bool split_batches = false;
  /// Loaders: every process gets equally many batches; the last round wraps to the epoch's
  /// beginning.
  bool even_batches = true;
  /// Loaders: the main process reads all batches and sends the others theirs.
  bool dispatch_batches = false;
  /// Random states made the same on all processes at the beginning of every pass over a loader.
  /// The orders of loaders need none of them: they are functions of seed and epoch.
  std::vector<data::RngType> rng_types = {};

  /// Trackers to log with: names ("tensorboard", "csv", "jsonl"), and objects of the program's own
  /// classes, std::make_shared<MyTracker>(), which derive from tracking::Tracker.
  std::vector<tracking::TrackerChoice> log_with = {};
  /// Where trackers that are named and automatic checkpoints go; needed for either.
  std::filesystem::path project_dir = {};
  /// The folder of this run's logs within project_dir.
  std::string project_name = "logs";
  /// Checkpoints: how many, how often, where.
  ProjectConfiguration project_config = {};
  /// With a project_dir: SIGTERM or SIGUSR1 to any process (or to `lockstep launch`, which passes
  /// them on) makes all of them save_state() after the same batch and leave with exit code 75. They
  /// ask each other about five times a second, and at least every 64 batches: between two batches
  /// of the outermost loop over a prepared loader, if it trains, where an accumulation group ends.
  /// Not within join_uneven_inputs. A SIGTERM two seconds after another ends a process at once.
  bool save_when_preempted = true;
  /// Called with the checkpoint's folder before the process leaves; throw to stay.
  std::function<void(const std::filesystem::path& folder)> on_preempted = nullptr;
  DataParallelOptions data_parallel = {};
  /// With and without ZeRO. None: all travels as wide as it is.
  LowerPrecisionModules lower_precision_safe_modules = {};
  /// Sharded optimizer state and gradients. Without effect in one process, which has all anyway,
  /// unless something is offloaded.
  /// Not with shared_parameters, a comm hook, LocalSgd, or join_uneven_inputs.
  ///
  /// If none of the three is set, the stage is what LOCKSTEP_ZERO_STAGE says
  /// (`lockstep launch --zero-stage`), 0 for data parallel; or else what ACCELERATE_USE_FSDP and
  /// FSDP_* say, see fsdp_environment.h.
  std::optional<ZeroPlugin> zero = std::nullopt;
  /// The same in others' words; at most one of the three.
  std::optional<FsdpPlugin> fsdp_plugin = std::nullopt;
  std::optional<DeepSpeedPlugin> deepspeed_plugin = std::nullopt;
  /// On the CPUs of one host: prepared optimizers (of lockstep::optim) keep parameters and state
  /// once for all processes, in memory that they have in common. Each process updates its share,
  /// which all others then have without a message; to the bit what each would have computed.
  ///
  /// `Optimizer::step` is collective then. A program that changes parameters itself must do so on
  /// one process, between two barriers: what every process does would be done many times over. The
  /// memory is given back when the Accelerator is gone. Not with LocalSgd, nor join_uneven_inputs.
  bool shared_parameters = false;
  /// LOCKSTEP_TIMEOUT_MS and LOCKSTEP_JOIN_TIMEOUT_MS, unless set here.
  ConnectOptions connect = ConnectOptions::from_environment(Environment::process());
};

}  // namespace lockstep
