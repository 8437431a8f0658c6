// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "lockstep/accelerator/options/non_finite_policy.h"
#include "lockstep/accelerator/options/project_configuration.h"
#include "lockstep/comm/connect/connect.h"
#include "lockstep/data/sample/random.h"
#include "lockstep/mesh/mesh_shape.h"
#include "lockstep/precision/grad_scaler.h"
#include "lockstep/precision/precision.h"
#include "lockstep/sync/data_parallel.h"
#include "lockstep/tensor_parallel/tensor_parallel.h"
#include "lockstep/tracking/tracker_choice.h"
#include "lockstep/zero_options/deepspeed_plugin.h"
#include "lockstep/zero_options/fsdp_plugin.h"
#include "lockstep/zero_options/zero_plugin.h"

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
  /// The last batch of a loader in use ends an accumulation group of any length.
  bool sync_with_dataloader = true;
  /// The gradients of a group that is shorter than num_steps are the mean over its actual number of
  /// micro-steps. False: their sum divided by num_steps, as in Accelerate.
  bool rescale_short_group = true;
  /// Averages gradients in every micro-step; saves memory for strategies that shard gradients.
  bool sync_each_batch = false;
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

  /// Arranges the processes: it gives each its samples, and its part of the model. Not set:
  /// LOCKSTEP_MESH (`lockstep launch --mesh`), or PARALLELISM_CONFIG_TP_SIZE and the like;
  /// else all are data parallel. The loaders of processes that share a batch read the same one;
  /// gather, gather_for_metrics, reduce and pad_across_processes exchange the values of processes
  /// with different samples. See docs/mesh.md.
  std::optional<MeshShape> mesh = std::nullopt;
  /// The layers that the processes of a tp line divide; needed if the mesh has tp.
  TensorParallelOptions tensor_parallel = {};

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
