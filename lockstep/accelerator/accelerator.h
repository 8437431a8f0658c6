// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <ATen/core/Tensor.h>

#include "lockstep/accelerator/backward/gradient_norms.h"
#include "lockstep/accelerator/backward/gradient_scope.h"
#include "lockstep/accelerator/loop/epoch_range.h"
#include "lockstep/accelerator/loop/progress_range.h"
#include "lockstep/accelerator/loop/scheduler.h"
#include "lockstep/accelerator/options/call_options.h"
#include "lockstep/accelerator/options/options.h"
#include "lockstep/accelerator/prepare/prepare.h"
#include "lockstep/accelerator/prepare/preparer.h"
#include "lockstep/accelerator/profile/profile.h"
#include "lockstep/accelerator/step/optimizer.h"
#include "lockstep/accelerator/training_state/checkpointable.h"
#include "lockstep/accelerator/training_state/state_hooks.h"
#include "lockstep/accelerator/values/collectives.h"
#include "lockstep/base/host/world.h"
#include "lockstep/checkpoint/weights/save_model.h"
#include "lockstep/comm/call_scope.h"
#include "lockstep/comm/group.h"
#include "lockstep/comm/mesh_groups.h"
#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/precision/autocast.h"

namespace lockstep {

namespace internal {
class AcceleratorInternals;
}  // namespace internal

/// Runs a single-process training loop on many processes. The main object of a training program.
///
/// The constructor finds this process's rank (from torchrun's, MPI's or SLURM's variables, or a
/// world of one), and connects the processes. It limits torch's threads to this rank's share of the
/// cores, unless OMP_NUM_THREADS is set. `prepare` shards loaders, makes models data parallel and
/// wraps optimizers; the loop itself does not change. In one process a step communicates nothing.
///
/// All processes must call every function marked collective. The destructor never communicates;
/// call `end_training()` so that trackers mark the run as finished.
///
/// It may be moved; the one moved from can only be assigned to or destroyed. Functions that
/// find_executable_batch_size returns refer to it, so do not move it before they end.
///
/// Modelled on Hugging Face Accelerate's class of the same name.
class Accelerator {
 public:
  explicit Accelerator(AcceleratorOptions options = {});
  /// Uses an existing group, for instance of ranks that are threads, or of a part of a job's ranks.
  Accelerator(AcceleratorOptions options, WorldSpec world, Group group);
  ~Accelerator();
  Accelerator(Accelerator&& other) noexcept;
  Accelerator& operator=(Accelerator&& other) noexcept;

  // --- rank and world
  int process_index() const;
  int num_processes() const;
  int local_process_index() const;
  bool is_main_process() const;
  bool is_local_main_process() const;
  bool is_last_process() const;
  bool use_distributed() const;
  /// Returns "NO", "MULTI_CPU" or "MULTI_GPU", as Accelerate does.
  std::string distributed_type() const;
  /// Returns the device of prepared models: this process's GPU, or the CPU without one or with
  /// AcceleratorOptions::cpu.
  at::Device device() const;
  const WorldSpec& world() const;
  /// Returns the group of all processes, for the program's own collectives.
  Group& group();
  /// Returns the groups of processes that divide samples, layers or sequences, and the mesh's
  /// shape.
  const comm::MeshGroups& mesh() const;

  // --- prepare and step
  /// Prepares models, optimizers, schedules and loaders, in any order and number. Returns them in
  /// that order (a single one directly). Collective. Preparing an object again does nothing.
  ///
  /// - A model (a module holder or shared_ptr) keeps its type and stays the same module. It is
  ///   moved to device(), and gets rank 0's weights on all processes. Its gradients are averaged
  ///   during backward.
  /// - An optimizer of lockstep::optim or torch::optim becomes a lockstep::Optimizer. An lvalue is
  ///   referred to and must outlive the result; an rvalue is moved in, a shared_ptr shared. An
  ///   optimizer class of your own must be Checkpointable to be saved; if it is not and project_dir
  ///   is set, prepare() throws ConfigError.
  /// - A schedule (schedule::warmup_cosine(...)) becomes a lockstep::Scheduler of the optimizers in
  ///   the same call, or of all prepared ones if the call has none.
  /// - A data::Loader stays the same loader. It delivers this process's share, on device() or on
  ///   the loader's own device.
  template <typename... Objects>
  auto prepare(Objects&&... objects) {
    const comm::CallScope call("prepare");
    auto prepared = preparer().prepare(std::forward<Objects>(objects)...);
    end_prepare();
    if constexpr (sizeof...(Objects) == 1) {
      return std::get<0>(std::move(prepared));
    } else {
      return prepared;
    }
  }

  /// Returns `model`, since prepare() wraps nothing around it. For programs ported from Accelerate.
  template <ModuleHandle Model>
  static Model unwrap_model(const Model& model) {
    return model;
  }

  // --- accumulation
  /// Begins the scope of one micro-step: `auto micro_step = accelerator.accumulate(model);` at the
  /// top of the loop's body. In every micro-step but the last of its accumulation group, gradients
  /// are not averaged, and optimizers and schedulers do nothing. Without arguments this holds for
  /// all models. The last one is micro-step number gradient_accumulation_steps, or the last batch
  /// of a loader in use: one that got a batch since the last micro-step.
  template <ModuleHandle... Models>
  GradientScope accumulate(const Models&... models) {
    return begin_micro_step({static_cast<const void*>(models.get())...});
  }
  /// Begins a scope in which backward does not average gradients (DDP's no_sync). The first
  /// backward after the scope averages the sum. Without arguments it holds for all models.
  template <ModuleHandle... Models>
  GradientScope no_sync(const Models&... models) {
    return begin_no_sync({static_cast<const void*>(models.get())...});
  }
  /// Makes the following backward passes inside no_sync average anyway. Throws ConfigError outside.
  template <ModuleHandle... Models>
  void trigger_sync_in_backward(const Models&... models) {
    trigger_sync({static_cast<const void*>(models.get())...});
  }
  /// Returns whether this micro-step ends its accumulation group. Always true without accumulate().
  bool sync_gradients() const;
  int64_t gradient_accumulation_steps() const;
  /// Changes the micro-steps of the next accumulation groups. All processes must set the same
  /// number. Throws ConfigError for less than 1, and within a group.
  void set_gradient_accumulation_steps(int64_t steps);

  /// Computes gradients and, with several processes, averages them. The loss is first divided by
  /// gradient_accumulation_steps, or by the actual number of micro-steps in a shorter last group;
  /// see GradientAccumulationPlugin::rescale_short_group.
  /// Also works if, on this process, the loss depends on no parameter of the model and only one
  /// model is prepared. With several, a backward must reach the same ones on every process.
  void backward(const at::Tensor& loss, const BackwardOptions& options = {});
  /// Computes the gradient of the mean over all counted items. `loss_sum` is a sum over `count`
  /// tokens (or samples). It is divided by the counts of all processes and all micro-steps of the
  /// accumulation group. So the update does not depend on the distribution of tokens. Collective if
  /// sync_gradients() is true. Call it once per micro-step.
  void backward(const at::Tensor& loss_sum, double count);
  /// Returns the loss that backward(loss) would differentiate, for a program that calls .backward()
  /// on it. Hooks on the returned loss do the rest of backward(loss). Several scaled losses may be
  /// in one backward. Throws ConfigError for a loss that depends on nothing.
  at::Tensor scale_loss(const at::Tensor& loss);

  // --- precision
  Precision mixed_precision() const;
  /// Begins a scope of the accelerator's mixed precision: `auto cast = accelerator.autocast();`.
  /// Does nothing without mixed precision.
  [[nodiscard]] Autocast autocast(std::optional<AutocastOptions> options = std::nullopt) const;
  /// Returns the loss scaler with fp16, else null. Collective after an update, whose result it
  /// applies to the scale.
  GradScaler* scaler();
  /// Returns whether an optimizer skipped its last update because gradients had overflowed.
  bool optimizer_step_was_skipped() const;
  /// Divides the gradients of all optimizers, or of `optimizer`, by the loss scale. A second call
  /// before the next update does nothing. clip_* and Optimizer::step call it.
  void unscale_gradients();
  void unscale_gradients(const Optimizer& optimizer);
  /// Scales the gradients down to a total norm of `max_norm`. Returns their previous norm, over all
  /// of `parameters` and without the loss scale, as a 0-d tensor on their device. A repeated call
  /// before the next backward changes nothing and returns the same. In a micro-step that only
  /// accumulates it does nothing, and returns the last norm.
  at::Tensor clip_grad_norm_(
      const std::vector<at::Tensor>& parameters, double max_norm, double norm_type = 2);
  /// Limits gradient elements to +-clip_value. Does nothing in a micro-step that only accumulates.
  void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value);
  /// Returns the norms before and after the last clip_grad_norm_.
  const GradientNorms& gradient_norms() const;
  /// Averages now the gradients that earlier backward passes within no_sync left unaveraged.
  /// Collective. Throws ConfigError within no_sync.
  void average_gradients();
  /// Returns the names of trained parameters that have had a gradient on no process since the last
  /// zero_grad(). The list is the same on all processes after a backward that averages.
  std::vector<std::string> parameters_without_gradient() const;

  // --- one process at a time
  /// Runs `body` on the named process(es) only; other processes continue at once.
  void on_main_process(const std::function<void()>& body) const;
  void on_local_main_process(const std::function<void()>& body) const;
  void on_last_process(const std::function<void()>& body) const;
  void on_process(int process_index, const std::function<void()>& body) const;
  void on_local_process(int local_process_index, const std::function<void()>& body) const;
  /// Runs `body` on the main process (of each host) first, then on the others: for downloads and
  /// caches. Collective. If it throws on the main process, the other processes throw, too.
  void main_process_first(const std::function<void()>& body);
  void local_main_process_first(const std::function<void()>& body);
  /// Writes a line to stdout, once on each host.
  void print(const std::string& line) const;
  /// Blocks until every process has called it. Notes the parameters for end_training(): a process
  /// may write to them afterwards, for instance averages to save. Collective.
  void wait_for_everyone();

  /// Returns this process's contiguous share of `inputs`, which it has alone, or with the processes
  /// that compute the same samples on a mesh; the first processes get one more if the
  /// number is not divisible. `apply_padding` adds the last element of `inputs` to shorter shares.
  /// Tensors are split along dimension 0, maps value by value (throws ConfigError unless equally
  /// long).
  template <typename Inputs>
  Inputs split_between_processes(const Inputs& inputs, bool apply_padding = false) const {
    return lockstep::split_between_processes(
        inputs, mesh().data.rank(), mesh().data.size(), apply_padding);
  }
  /// Sets a flag that check_trigger() reads on all processes, for instance after a diverged loss.
  void set_trigger();
  /// Returns whether any process has set the flag, and clears it on all. Collective.
  bool check_trigger();

  // --- values across processes (collective; see operations.h)
  // T is any nested value of tensors: vectors, maps, tuples, structs with LOCKSTEP_FIELDS. If
  // processes pass different numbers of tensors, all throw ConfigError, which lists each number.
  /// Concatenates each tensor of `value` along dimension 0, in rank order. Keeps gradients: a loss
  /// of the result trains all processes' inputs, as in one process.
  template <NestedTensors T>
  [[nodiscard]] T gather(const T& value) {
    const comm::CallScope call("gather");
    return collectives().gather(value);
  }
  template <NestedTensors First, NestedTensors... Others>
  requires(sizeof...(Others) > 0)
      [[nodiscard]] auto gather(const First& first, const Others&... others) {
    // Braces evaluate in order, as all processes must.
    return std::tuple{gather(first), gather(others)...};
  }
  /// Works as `gather` for tensors with a row for each sample of the current batch, and drops
  /// samples that were repeated to fill the last global batch. A tensor with another number of rows
  /// is gathered unchanged. Use gather() for one that has that number by chance. Keeps no
  /// gradients.
  template <NestedTensors T>
  [[nodiscard]] T gather_for_metrics(const T& value) {
    const comm::CallScope call("gather_for_metrics");
    return collectives().gather_for_metrics(value);
  }
  template <NestedTensors First, NestedTensors... Others>
  requires(sizeof...(Others) > 0)
      [[nodiscard]] auto gather_for_metrics(const First& first, const Others&... others) {
    return std::tuple{gather_for_metrics(first), gather_for_metrics(others)...};
  }
  /// Returns each tensor of `value` reduced over all processes, by default to their sum. Keeps
  /// gradients.
  template <NestedTensors T>
  [[nodiscard]] T reduce(const T& value, ReduceOp op = ReduceOp::kSum) {
    const comm::CallScope call("reduce");
    return collectives().reduce(value, op);
  }
  /// Pads each tensor with `pad_index` to the largest size of dimension `dim` on any process.
  template <NestedTensors T>
  [[nodiscard]] T pad_across_processes(
      const T& value, int64_t dim = 0, double pad_index = 0, bool pad_first = false) {
    const comm::CallScope call("pad_across_processes");
    return collectives().pad_across_processes(value, dim, pad_index, pad_first);
  }
  /// Returns the value of `from_process`.
  template <NestedTensors T>
  [[nodiscard]] T broadcast(const T& value, int from_process = 0) {
    const comm::CallScope call("broadcast");
    return collectives().broadcast(value, from_process);
  }
  /// Returns the values of all processes, in rank order; arrays are concatenated.
  std::vector<nlohmann::json> gather_object(const nlohmann::json& value);
  /// Works as gather_object for an array with one element per sample of the batch, without repeats.
  std::vector<nlohmann::json> gather_object_for_metrics(const nlohmann::json& array);
  /// Returns the value of `from_process`.
  nlohmann::json broadcast_object(const nlohmann::json& value, int from_process = 0);

  // --- progress and logs
  /// Wraps `range` in a progress bar on stderr of the main process; without a terminal a line every
  /// few seconds, see ProgressTerminal. For a loader or epochs() the bar shows the position and the
  /// total. It shows the memory in use, and the last loss; of a device, or with a NonFinitePolicy,
  /// the program shows it by set_value("loss", ...).
  template <typename Range>
  auto progress(Range range, std::string label = "") {
    return with_progress(std::move(range), std::move(label), live_progress());
  }
  /// Returns the epochs 0 to `count`, without those that a resumed program has done. Each call is
  /// another range that counts its own iterations, whatever passes over loaders are elsewhere; a
  /// resumed program must call epochs() in the same order. A save counts the running iteration as
  /// done once it has trained and its training pass is complete. Resumes first if requested, see
  /// resume_latest().
  EpochRange epochs(int64_t count);
  /// Opens the trackers of `log_with`, on the main process unless they require others, and stores
  /// `config`. Without this call the first log() opens them, without a config.
  void init_trackers(const nlohmann::json& config);
  /// Logs on the main process. `step` defaults to the updates of the first prepared optimizer.
  void log(const std::map<std::string, double>& values, std::optional<int64_t> step = std::nullopt);
  /// Logs batches of images, [N, C, H, W], [C, H, W] or [H, W] with 1, 3 or 4 channels: bytes, or
  /// floating-point numbers from 0 to 1. This function and the next three log on the main process,
  /// to the trackers that store such values. Throw ConfigError if none does.
  void log_images(
      const std::map<std::string, at::Tensor>& images, std::optional<int64_t> step = std::nullopt);
  /// Logs the distribution of each tensor's elements.
  void log_histograms(
      const std::map<std::string, at::Tensor>& values, std::optional<int64_t> step = std::nullopt);
  void log_text(
      const std::map<std::string, std::string>& texts, std::optional<int64_t> step = std::nullopt);
  void log_tables(
      const std::map<std::string, tracking::Table>& tables,
      std::optional<int64_t> step = std::nullopt);
  /// Returns the tracker of that name; on processes that do not log, one that does nothing. Throws
  /// ConfigError before init_trackers() or the first log(), and if log_with lacks the name.
  std::shared_ptr<tracking::Tracker> get_tracker(const std::string& name) const;
  /// Marks the run as finished in all trackers, after every process has called it. Collective.
  void end_training();
  /// Records this process with Kineto, one Chrome trace for each process; see profile.h. Without
  /// output_trace_dir the traces are in `<project_dir>/profile`.
  std::unique_ptr<Profile> profile(ProfileOptions options = {}) const;

  // --- inputs of different lengths
  /// Runs `body`, a loop over prepared loaders in which processes may have different numbers of
  /// batches. A process without further batches contributes zero gradients until all have finished.
  /// Afterwards every process has the weights and optimizer state of a process that ran out of data
  /// last. Collective; `body` must use no other collectives than backward(loss). Throws ConfigError
  /// with LocalSgd, with counts in backward, and with a NonFinitePolicy.
  void join_uneven_inputs(const JoinUnevenInputs& options, const std::function<void()>& body);
  void join_uneven_inputs(const std::function<void()>& body);

  // --- sharded models, and memory
  /// Builds a model that may not fit into one process's memory: `auto net =
  /// accelerator.zero_init([] { return Net(); })`. Under ZeRO stage 3 each tensor of 4096 elements
  /// or more is sharded when the next one is created, with rank 0's values, on this process's
  /// device. Other tensors are moved there at the end. Without stage 3 it only calls `build`.
  ///
  /// prepare() takes over the shards. Tensors that it keeps replicated (buffers, and frozen
  /// parameters up to the persistence threshold) are gathered on every process and stay full. A
  /// second model, such as a teacher, stays sharded, and is unsharded on all processes when an
  /// operation uses it, while this Accelerator lives. Collective.
  template <typename Build>
  auto zero_init(const Build& build) {
    std::shared_ptr<void> scope = begin_zero_init();
    auto built = build();
    if (scope) {
      scope.reset();
      finish_zero_init(tensors_of_built(built));
    }
    return built;
  }
  /// Runs `body` while `parameters` are unsharded on every process, so that `body` may also use
  /// data_ptr(). Needed under ZeRO stage 3, harmless otherwise. Changes by `body` are lost, unless
  /// `modifier_rank` names the process whose values all processes get. Collective.
  void with_gathered_parameters(
      const std::vector<at::Tensor>& parameters,
      const std::function<void()>& body,
      std::optional<int> modifier_rank = std::nullopt);
  /// Moves training states from the device to host memory, for instance for a model that generates
  /// between two phases of training. On the CPU nothing moves. Until reload_states() there is no
  /// update, save or load (ConfigError), and using an offloaded value throws c10::Error. Collective
  /// under ZeRO. Throws ConfigError for optimizers of torch::optim, with kOptimStates, and with
  /// offload_param.
  void offload_states(const OffloadStatesOptions& options = {});
  /// Moves the states back. Does nothing if none is offloaded.
  void reload_states(bool non_blocking = false);
  /// Forgets all prepared objects, frees their memory, and sets `objects` to empty handles.
  template <typename... Objects>
  void free_memory(Objects&... objects) {
    ((objects = empty_like(objects)), ...);
    forget_prepared();
  }

  // --- checkpoints
  /// Saves the training state to `folder`, atomically. The folder must not exist, unless
  /// `overwrite`, which replaces it after the new one is complete. It contains the models,
  /// optimizers, schedulers, loss scaler, registered objects, and each process's random state and
  /// positions in loaders and accumulation group. Collective. Throws CheckpointError on every
  /// process if it fails on any, or if processes have done different numbers of updates.
  ///
  /// The main process may call it alone, between updates, with plain data parallelism on CPUs: it
  /// has all but the random states of the others, which a load then derives from its own, as after
  /// a change of the number of processes, their own states of registered objects, and files of
  /// their hooks. It waits until the others call their next operation of the Accelerator's group,
  /// at the latest end_training(), in whose timeout the save must end. Otherwise (ZeRO, NCCL,
  /// LocalSgd, `async`, without a `folder`, within accumulation) a call by some processes alone is
  /// a CommError on all.
  ///
  /// With `async` it copies the state to host memory and returns. If writing fails, the next
  /// load_state, wait_for_save, end_training, or save_state (after its own save) throws the error.
  void save_state(const std::filesystem::path& folder, const SaveStateOptions& options = {});
  /// Saves to the next `<project_dir>/checkpoints/checkpoint_<n>`, and keeps
  /// ProjectConfiguration::total_limit of them. Returns the folder.
  std::filesystem::path save_state(const SaveStateOptions& options = {});
  /// Blocks until no asynchronous save is running in this process; throws if it failed.
  void wait_for_save();
  /// Writes only the weights, in transformers' format (see checkpoint/weights/save_model.h), on the
  /// main process, one tensor at a time. Collective: returns, or throws, on all processes.
  template <ModuleHandle Model>
  void save_model(
      const Model& model,
      const std::filesystem::path& folder,
      const checkpoint::SaveModelOptions& options = {}) {
    save_model_tensors(
        tensors_of_module(*model, !options.exclude_frozen_parameters), folder, options);
  }
  /// Returns the costs of the last save, including the time that training was blocked.
  const SaveTimings& last_save() const;

  /// Loads a checkpoint of save_state(). Prepare the same objects in the same order; the number of
  /// processes may differ. Loaders continue after the samples that all processes had consumed.
  /// Additional processes get their own random numbers, derived from the saved state. Collective.
  /// Checks everything before it changes anything. Throws CheckpointError, which names file and
  /// tensor, or the processes that would load different checkpoints.
  void load_state(const std::filesystem::path& folder, const LoadStateOptions& options = {});
  /// Loads the newest complete checkpoint of `<project_dir>/checkpoints`. Incomplete folders are
  /// skipped, with a warning. Throws CheckpointError if there is none, or one of a newer Lockstep.
  std::filesystem::path load_state();
  /// Calls load_state() if there is a checkpoint; otherwise changes nothing and returns nullopt.
  /// Throws CheckpointError if no existing checkpoint can be used, or one is of a newer Lockstep.
  /// Under `lockstep launch --resume` it is called in epochs() or before the first batch, unless
  /// the program has loaded a state by then.
  std::optional<std::filesystem::path> resume_latest();

  /// Adds objects with state_dict() and load_state_dict(), see checkpointable.h, to all later
  /// checkpoints; they must outlive this. Register the same ones in the same order when loading. A
  /// state that differs between processes is saved for each of them.
  template <Checkpointable... Objects>
  void register_for_checkpointing(Objects&... objects) {
    (add_checkpointable(AnyCheckpointable(objects)), ...);
  }
  /// Runs `hook` on every process at the start of each save_state. It may add files, and exclude
  /// models. Calling the returned function removes it.
  std::function<void()> register_save_state_pre_hook(SaveStatePreHook hook);
  /// Does the same for load_state, before anything is changed.
  std::function<void()> register_load_state_pre_hook(LoadStatePreHook hook);

  /// Has the effect of a SIGTERM to this process, see AcceleratorOptions::save_when_preempted.
  /// Throws ConfigError if that is off, or there is no project_dir.
  void request_preemption();

 private:
  friend class internal::AcceleratorInternals;
  struct State;

  internal::Preparer& preparer();
  void end_prepare();
  internal::Collectives& collectives();
  GradientScope begin_micro_step(const std::vector<const void*>& models);
  GradientScope begin_no_sync(const std::vector<const void*>& models);
  void trigger_sync(const std::vector<const void*>& models);
  std::shared_ptr<void> begin_zero_init();
  void finish_zero_init(const NamedTensors& tensors);
  void save_model_tensors(
      const NamedTensors& tensors,
      const std::filesystem::path& folder,
      const checkpoint::SaveModelOptions& options);
  void add_checkpointable(AnyCheckpointable object);
  void forget_prepared();
  std::function<ProgressValues()> live_progress() const;

  std::unique_ptr<State> state_;
};

}  // namespace lockstep
