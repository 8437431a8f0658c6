// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <ATen/core/Tensor.h>

#include "lockstep/accelerator/options/backward_options.h"
#include "lockstep/accelerator/training_state/checkpointable.h"
#include "lockstep/accelerator/loop/epoch_range.h"
#include "lockstep/accelerator/loop/gradient_scope.h"
#include "lockstep/accelerator/values/nested_operations.h"
#include "lockstep/accelerator/options/offload_states.h"
#include "lockstep/accelerator/values/operations.h"
#include "lockstep/accelerator/loop/optimizer.h"
#include "lockstep/accelerator/options/options.h"
#include "lockstep/accelerator/prepare.h"
#include "lockstep/accelerator/profile/profile.h"
#include "lockstep/accelerator/loop/progress_range.h"
#include "lockstep/accelerator/loop/scheduler.h"
#include "lockstep/accelerator/training_state/state_hooks.h"
#include "lockstep/base/world.h"
#include "lockstep/checkpoint/save_model.h"
#include "lockstep/comm/group.h"
#include "lockstep/comm/named_tensor.h"
#include "lockstep/data/loader/loader_core.h"
#include "lockstep/precision/autocast.h"
#include "lockstep/sync/gradient_sync.h"
#include "lockstep/sync/join.h"

namespace lockstep {

class DataParallel;
using DataParallels = std::vector<std::shared_ptr<DataParallel>>;

struct JoinUnevenInputs {
  /// For the loop, loaders go by this instead of AcceleratorOptions::even_batches.
  std::optional<bool> even_batches = std::nullopt;
  JoinOptions join = {};
};

/// Of the gradients that clip_grad_norm_ last clipped; tensors, so that nobody waits for a device.
struct GradientNorms {
  at::Tensor before;
  at::Tensor after;
};

/// The training loop's one object: write the loop for one process, run it on many.
///
/// Constructing it finds out who this process is (torchrun's, MPI's or SLURM's variables, or
/// alone), meets the other ranks and takes its share of the cores. `prepare` shards loaders, makes
/// models data parallel and wraps optimizers; after it the loop is the one for a single process.
/// Alone it adds nothing to a step.
///
/// Every function marked collective must be called by all processes. Destroying it never
/// communicates; call `end_training()` so that logs are closed as finished.
///
/// Thread safety: none. After Hugging Face Accelerate's class of the same name.
class Accelerator {
 public:
  explicit Accelerator(AcceleratorOptions options = {});
  /// In a world that is already connected: ranks as threads, or part of a job.
  Accelerator(AcceleratorOptions options, WorldSpec world, Group group);
  ~Accelerator();
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;

  // --- who am I
  int process_index() const;
  int num_processes() const;
  int local_process_index() const;
  bool is_main_process() const;
  bool is_local_main_process() const;
  bool is_last_process() const;
  bool use_distributed() const;
  /// "NO", "MULTI_CPU" or "MULTI_GPU", as Accelerate calls them.
  std::string distributed_type() const;
  /// Where prepared models compute: this process's GPU, or the CPU where there is none or
  /// AcceleratorOptions::cpu says so.
  at::Device device() const;
  const WorldSpec& world() const;
  /// The group of all processes, for collectives of your own.
  Group& group();

  // --- prepare and step
  /// Makes models, optimizers and loaders ready, in any order and number; returns them in that
  /// order (a single one bare). Collective. Preparing something again does nothing.
  ///
  /// - A model (a module holder or shared_ptr) keeps its type and is the same module: on device(),
  ///   rank 0's weights everywhere, gradients averaged during backward.
  /// - An optimizer of lockstep::optim or torch::optim becomes a lockstep::Optimizer. Passed as an
  ///   lvalue it is referred to and must outlive the result; as an rvalue it is moved in, as a
  ///   shared_ptr shared. One of a class of your own is saved if that is Checkpointable; if not,
  ///   and there is a project_dir, ConfigError.
  /// - A schedule (optim::warmup_cosine(...)) becomes a lockstep::Scheduler of the optimizers in
  ///   the same call, or of all prepared ones if the call has none.
  /// - A data::Loader is the same loader, giving this process its share, on device() unless it has
  ///   a device of its own.
  template <typename... Objects>
  auto prepare(Objects&&... objects) {
    begin_prepare();
    (prepare_first(objects), ...);
    std::tuple prepared{prepare_one(std::forward<Objects>(objects))...};
    end_prepare();
    if constexpr (sizeof...(Objects) == 1) {
      return std::get<0>(std::move(prepared));
    } else {
      return prepared;
    }
  }

  /// The model itself: nothing is wrapped around it here. For programs that come from Accelerate.
  template <ModuleHandle Model>
  static Model unwrap_model(const Model& model) {
    return model;
  }

  // --- accumulation
  /// The scope of one micro-step: `auto micro_step = accelerator.accumulate(model);` at the top of
  /// the loop's body. Decides whether this one ends its group; if not, the models' gradients stay
  /// on this process, and optimizers and schedulers do nothing. A group ends after
  /// gradient_accumulation_steps, and with the last batch of the innermost loader. Without models:
  /// all prepared ones.
  template <ModuleHandle... Models>
  GradientScope accumulate(const Models&... models) {
    return begin_micro_step({static_cast<const void*>(models.get())...});
  }
  /// Backwards within the scope leave the models' gradients (all models', if none is given) on this
  /// process; the next one after it averages all that came together.
  template <ModuleHandle... Models>
  GradientScope no_sync(const Models&... models) {
    return begin_no_sync({static_cast<const void*>(models.get())...});
  }
  /// Within no_sync: the next backwards average after all. ConfigError outside.
  template <ModuleHandle... Models>
  void trigger_sync_in_backward(const Models&... models) {
    trigger_sync_of({static_cast<const void*>(models.get())...});
  }
  /// Whether the current micro-step ends its group. Always true without accumulate().
  bool sync_gradients() const;
  int64_t gradient_accumulation_steps() const;

  /// Computes gradients and, with several processes, averages them. The loss is divided by
  /// gradient_accumulation_steps first, or by the micro-steps a shorter last group really has. Also
  /// when this process's loss does not reach the (single) prepared model. With several prepared
  /// models, a backward must reach the same ones on every process.
  void backward(const at::Tensor& loss, const BackwardOptions& options = {});
  /// The gradient of the mean over everything counted: `loss_sum` is a sum over `count` tokens (or
  /// samples), and the division is by the counts of all processes and all micro-steps of the group
  /// together, so that however the tokens are dealt out the update is the same. Collective where
  /// sync_gradients(). One call a micro-step.
  void backward(const at::Tensor& loss_sum, double count);
  /// What backward(loss) would differentiate: for a program that calls .backward() on it itself.
  /// Around that happens, by itself, what happens around backward(loss); several scaled losses may
  /// be in one backward. ConfigError for a loss that depends on nothing.
  at::Tensor scale_loss(const at::Tensor& loss, BackwardSteps steps = {});
  /// From now on `judge` is called at the first gradient of the prepared models from a backward
  /// that neither of these knows of, and throws unless its gradients are right all the same.
  void watch_unknown_backwards(std::function<void()> judge);
  /// For who counts micro-steps itself: `ends_update` says whether a backward is an update's last.
  void set_ends_update(std::function<bool()> ends_update);

  // --- precision
  Precision mixed_precision() const;
  /// Computes in the accelerator's mixed precision until the scope ends:
  /// `auto cast = accelerator.autocast();`. Does nothing without one.
  Autocast autocast(std::optional<AutocastOptions> options = std::nullopt) const;
  /// The loss scaler with fp16, else null.
  GradScaler* scaler();
  /// Whether an optimizer left its last update out, because gradients had overflowed.
  bool optimizer_step_was_skipped() const;
  /// Takes the loss scale off the gradients (of one optimizer), once an update however often it is
  /// called. clip_* and Optimizer::step do it themselves.
  void unscale_gradients();
  void unscale_gradients(const Optimizer& optimizer);
  /// Scales the gradients down to a total norm of `max_norm`. Returns the norm they had, over all
  /// of `parameters` and with the scale taken off, as a 0-d tensor on their device. Clipping the
  /// same again before the next backward changes nothing and returns the same. In a micro-step that
  /// only accumulates it does nothing, and returns the last norm.
  at::Tensor clip_grad_norm_(
      const std::vector<at::Tensor>& parameters, double max_norm, double norm_type = 2);
  /// Cuts every element off at +-clip_value; not in a micro-step that only accumulates.
  void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value);
  /// What the last clip_grad_norm_ found and left.
  const GradientNorms& gradient_norms() const;
  /// Averages what backwards within no_sync have left with the models, as a backward after it
  /// would. Collective. ConfigError within no_sync.
  void average_gradients();
  /// Names of the parameters that an optimizer trains and of which no process had a gradient since
  /// they were dropped: after a backward that averages the same on all processes.
  std::vector<std::string> parameters_without_gradient() const;

  // --- one process at a time
  /// Runs `body` on one kind of process only; the others go on at once.
  void on_main_process(const std::function<void()>& body) const;
  void on_local_main_process(const std::function<void()>& body) const;
  void on_last_process(const std::function<void()>& body) const;
  void on_process(int process_index, const std::function<void()>& body) const;
  void on_local_process(int local_process_index, const std::function<void()>& body) const;
  /// Runs `body` on the main process (of each host) first, then on the others: for downloads and
  /// caches. Collective. If it throws on the main process, the others are told.
  void main_process_first(const std::function<void()>& body);
  void local_main_process_first(const std::function<void()>& body);
  /// Writes a line to stdout, once on each host.
  void print(const std::string& line) const;
  /// Returns when every process has called it. Collective.
  void wait_for_everyone();

  /// Inputs for this process: a contiguous share of `inputs`, the first processes one more where
  /// they do not divide. With `apply_padding` every share has that length, its last element
  /// repeated. Tensors are cut along dimension 0, maps value by value (ConfigError unless equally
  /// long). Alone: all of it.
  template <typename Inputs>
  Inputs split_between_processes(const Inputs& inputs, bool apply_padding = false) const {
    return lockstep::split_between_processes(
        inputs, process_index(), num_processes(), apply_padding);
  }
  /// A flag that any process may raise, for check_trigger on all: "my loss diverged, all stop".
  void set_trigger();
  /// Whether any process has raised it; lowers it on all. Collective.
  bool check_trigger();

  // --- values across processes (collective; see operations.h)
  // T is any nested value made of tensors: vectors, maps, tuples, structs with LOCKSTEP_FIELDS.
  // ConfigError on every rank, naming each one's number, if the ranks pass different numbers of
  // tensors.
  template <NestedTensors T>
  T gather(const T& value) {
    check_same_values("gather", value);
    return data::map_tensors(
        value, [&](const at::Tensor& tensor) { return lockstep::gather(group(), tensor); });
  }
  /// `gather` for tensors with a row per sample of the current batch, without the samples that were
  /// only repeated to fill the last round. Tensors with another number of rows are gathered whole;
  /// one that merely happens to have as many, a 2 x 2 matrix beside a batch of 2, is for gather().
  template <NestedTensors T>
  T gather_for_metrics(const T& value) {
    check_same_values("gather_for_metrics", value, /*with_sizes=*/false);
    return data::map_tensors(
        value, [&](const at::Tensor& tensor) { return gather_samples(tensor); });
  }
  template <NestedTensors First, NestedTensors... Others>
  requires(sizeof...(Others) > 0) auto gather_for_metrics(
      const First& first, const Others&... others) {
    return std::tuple{gather_for_metrics(first), gather_for_metrics(others)...};
  }
  template <NestedTensors T>
  T reduce(const T& value, ReduceOp op = ReduceOp::kSum) {
    check_same_values("reduce", value);
    return data::map_tensors(
        value, [&](const at::Tensor& tensor) { return lockstep::reduce(group(), tensor, op); });
  }
  template <NestedTensors T>
  T pad_across_processes(
      const T& value, int64_t dim = 0, double pad_index = 0, bool pad_first = false) {
    check_same_values("pad_across_processes", value, /*with_sizes=*/false);
    return data::map_tensors(value, [&](const at::Tensor& tensor) {
      return lockstep::pad_across_processes(group(), tensor, dim, pad_index, pad_first);
    });
  }
  template <NestedTensors T>
  T broadcast(const T& value, int from_process = 0) {
    check_same_values("broadcast", value);
    return data::map_tensors(value, [&](const at::Tensor& tensor) {
      return lockstep::broadcast(group(), tensor, from_process);
    });
  }
  std::vector<nlohmann::json> gather_object(const nlohmann::json& value);
  /// gather_object for an array with an element per sample of the current batch, without repeats.
  std::vector<nlohmann::json> gather_object_for_metrics(const nlohmann::json& array);
  nlohmann::json broadcast_object(const nlohmann::json& value, int from_process = 0);

  // --- watching
  /// `range` with a progress bar on the main process, on a terminal. A loader's total is known.
  template <typename Range>
  auto progress(Range range, std::string label = "") {
    ProgressOptions options{.label = std::move(label)};
    if constexpr (requires { range.cursor().batches; }) {
      options.unit = "batch";
      options.initial = range.epoch() == range.cursor().epoch ? range.cursor().batches : 0;
    }
    if constexpr (requires { range.size(); }) {
      options.total = static_cast<int64_t>(range.size());
    }
    return ProgressRange<Range>(std::move(range), std::move(options));
  }
  /// The epochs left of `count`: from the first prepared loader's epoch on, so that a resumed
  /// program goes on where it was. Without a loader, 0 to count.
  /// Resumes first where that was asked for, see resume_latest().
  EpochRange epochs(int64_t count);
  /// Opens the trackers of `log_with`, on the main process unless they say otherwise, and stores
  /// `config`. log() does it, without a config, if nobody has.
  void init_trackers(const nlohmann::json& config);
  /// Logs on the main process. `step`: by default how many updates the first prepared optimizer has
  /// done.
  void log(const std::map<std::string, double>& values, std::optional<int64_t> step = std::nullopt);
  /// Closes the trackers as finished, after all processes have come. Collective.
  void end_training();
  /// Records this process with Kineto, one Chrome trace a process; see profile.h. Without
  /// output_trace_dir the traces go to `<project_dir>/profile`.
  std::unique_ptr<Profile> profile(ProfileOptions options = {}) const;

  // --- inputs of different length
  /// Runs `body`, a loop over prepared loaders in which processes may have different numbers of
  /// batches: one that is through takes part in the others' averaging with zero gradients until all
  /// are. Afterwards every process has the weights and optimizer state of one that was last.
  /// Works on every transport. Collective; `body` must use no other collectives than
  /// backward(loss). ConfigError with LocalSgd, with counts in backward, and with a
  /// NonFinitePolicy.
  void join_uneven_inputs(const JoinUnevenInputs& options, const std::function<void()>& body);
  void join_uneven_inputs(const std::function<void()>& body);

  /// Takes what the run keeps on the device to the host's memory, so that others have the room: a
  /// model that generates between two phases of training, say. On the CPU it lies there already,
  /// and nothing moves. Until reload_states() there is no update, save or load (ConfigError), and
  /// what touches a value that is away is told so (c10::Error). Under ZeRO on all processes.
  /// ConfigError for optimizers of torch::optim, with kOptimStates, and with offload_param.
  void offload_states(const OffloadStatesOptions& options = {});
  /// Brings it back. Does nothing if there is nothing away.
  void reload_states(bool non_blocking = false);
  /// Forgets all that was prepared, frees its memory, and empties the objects. Trackers stay.
  template <typename... Objects>
  void free_memory(Objects&... objects) {
    ((objects = empty_like(objects)), ...);
    forget_prepared();
  }

  // --- saving
  /// Writes all that the run is made of to `folder`, whole or absent; it must not exist, unless
  /// `overwrite`, which replaces a checkpoint once the new one is whole. Models,
  /// optimizers, schedulers, the loss scaler, what was registered, and of every process its random
  /// state, the positions of its loaders and its place in an accumulation group. Collective.
  /// CheckpointError on every process if it fails on any, or they have not done equally many
  /// updates.
  ///
  /// With `async`, it copies all that to host memory and returns; a failure to write it is thrown
  /// by the next save, once that is done itself, load, wait_for_save() or end_training().
  void save_state(const std::filesystem::path& folder, const SaveStateOptions& options = {});
  /// The same to the next `<project_dir>/checkpoints/checkpoint_<n>`, and keeps
  /// ProjectConfiguration::total_limit of them. Returns the folder.
  std::filesystem::path save_state(const SaveStateOptions& options = {});
  /// Returns once no asynchronous save is under way in this process, and throws if it failed.
  void wait_for_save();
  /// Writes the weights alone, as transformers reads them (see checkpoint/save_model.h), on the
  /// main process, one tensor at a time. Collective: returns, or throws, on all of them.
  template <ModuleHandle Model>
  void save_model(
      const Model& model,
      const std::filesystem::path& folder,
      const checkpoint::SaveModelOptions& options = {}) {
    NamedTensors tensors = parameters_of(*model);
    checkpoint::SaveModelOptions rest = options;
    if (std::exchange(rest.exclude_frozen_parameters, false)) {
      std::erase_if(tensors, [](const NamedTensor& item) { return !item.tensor.requires_grad(); });
    }
    const NamedTensors buffers = buffers_of(*model);
    tensors.insert(tensors.end(), buffers.begin(), buffers.end());
    save_model_tensors(tensors, folder, rest);
  }
  /// Builds a model that no process could hold: `auto net = accelerator.zero_init([] { return
  /// Net(); })`. Under ZeRO stage 3 each tensor of 4096 elements or more is divided as soon as the
  /// next one is made, with rank 0's values, on the device of this process, to which a module's
  /// other parameters and buffers go in the end; else it just builds.
  ///
  /// prepare() takes the parts over, and makes whole what it does not divide: buffers, and frozen
  /// parameters up to the persistence threshold. A second model, such as a teacher, stays divided,
  /// and its values come on all processes when an operation touches them, for as long as this
  /// Accelerator lives. Collective.
  template <typename Build>
  auto zero_init(const Build& build) {
    std::shared_ptr<void> scope = begin_zero_init();
    auto built = build();
    if (scope) {
      scope.reset();
      NamedTensors tensors;
      if constexpr (ModuleHandle<decltype(built)>) {
        tensors = parameters_of(*built);
        const NamedTensors buffers = buffers_of(*built);
        tensors.insert(tensors.end(), buffers.begin(), buffers.end());
      }
      finish_zero_init(tensors);
    }
    return built;
  }
  /// Runs `body` while the values of `parameters` are whole on every process, to be read through
  /// pointers too: of use under ZeRO stage 3, where they are not here otherwise (and harmless
  /// elsewhere). What `body` writes to them is lost, unless `modifier_rank` names the process whose
  /// values all shall have then. Collective.
  void with_gathered_parameters(
      const std::vector<at::Tensor>& parameters,
      const std::function<void()>& body,
      std::optional<int> modifier_rank = std::nullopt);
  /// What the last save cost; how long training stood still for it.
  const SaveTimings& last_save() const;

  /// Restores what save_state wrote, into the objects prepared in the same order, in any number of
  /// processes: loaders go on after the samples that all have seen together; processes that were
  /// not there get random numbers of their own, which depend on what was saved. Collective. Checks
  /// everything before it changes anything; CheckpointError names file and tensor, or ranks that
  /// would not load the same save.
  void load_state(const std::filesystem::path& folder, const LoadStateOptions& options = {});
  /// From the newest whole checkpoint of `<project_dir>/checkpoints`. Folders that are torn are
  /// named and passed over. CheckpointError if there is none, or a newer Lockstep's.
  std::filesystem::path load_state();
  /// load_state() if there is a checkpoint; nothing, and nothing changed, if there is none.
  /// CheckpointError if there are some of which none can be used, or a newer Lockstep's. Under
  /// `lockstep launch --resume` it happens by itself in epochs() or before the first batch, unless
  /// the program has loaded something by then.
  std::optional<std::filesystem::path> resume_latest();

  /// Objects with state_dict() and load_state_dict(), see checkpointable.h, belong to every
  /// checkpoint from now on; they must outlive this. The same in the same order when loading. The
  /// state of one that differs between processes is kept for each of them.
  template <Checkpointable... Objects>
  void register_for_checkpointing(Objects&... objects) {
    (add_checkpointable(AnyCheckpointable(objects)), ...);
  }
  /// `hook` runs on every process at the beginning of each save_state, may add files, and may take
  /// over models. Calling what is returned removes it.
  std::function<void()> register_save_state_pre_hook(SaveStatePreHook hook);
  /// The same for load_state, before anything is changed.
  std::function<void()> register_load_state_pre_hook(LoadStatePreHook hook);

  /// As if this process had been sent SIGTERM, see AcceleratorOptions::save_when_preempted.
  /// ConfigError where that is off, or there is no project_dir.
  void request_preemption();

 private:
  friend class LocalSgd;
  friend class BatchSizeAttempt;
  struct State;

  template <typename Object>
  void prepare_first(Object& object) {
    using Type = std::remove_cvref_t<Object>;
    refuse_torch_loader<Type>();
    static_assert(
        TorchLoaderHandle<Type> || ModuleHandle<Type> || OptimizerHandle<Type> ||
            LoaderHandle<Type> || ScheduleHandle<Type> || std::is_same_v<Type, Optimizer> ||
            std::is_same_v<Type, Scheduler>,
        "prepare takes modules (a holder made by TORCH_MODULE, or a shared_ptr), optimizers of "
        "lockstep::optim or torch::optim, schedules of lockstep::optim and lockstep::data loaders");
    if constexpr (ModuleHandle<Type>) {
      add_model(
          object.get(),
          [object] { return parameters_of(*object); },
          [object] { return buffers_of(*object); },
          [object] { return classes_of(*object); });
    } else if constexpr (LoaderHandle<Type>) {
      add_loader(object.core());
    }
  }
  template <typename Object>
  auto prepare_one(Object&& object) {
    using Type = std::remove_cvref_t<Object>;
    if constexpr (OptimizerHandle<Type>) {
      return add_optimizer(given_optimizer(std::forward<Object>(object)));
    } else if constexpr (ScheduleHandle<Type>) {
      return add_schedule(std::forward<Object>(object));
    } else {
      return prepared_itself(std::forward<Object>(object));
    }
  }
  using Tensors = std::function<NamedTensors()>;
  using Classes = std::function<NamedClasses()>;

  void configure();
  void choose_device();
  void begin_prepare();
  void end_prepare();
  void add_model(const void* id, Tensors parameters, Tensors buffers, Classes classes);
  void add_loader(std::shared_ptr<data::LoaderCore> loader);
  void share_parameters();
  bool is_sharded() const;
  void choose_zero();
  void check_zero() const;
  std::shared_ptr<void> begin_zero_init();
  void finish_zero_init(const NamedTensors& tensors);
  void shard_parameters();
  /// ConfigError, in the name of `where`, under ZeRO, since `because`.
  void refuse_zero(const char* where, const char* because) const;
  /// ConfigError, in the name of `where`, after offload_states.
  void refuse_offloaded(const char* where) const;
  /// ConfigError, in the name of `where`, if parameters are shared, since `because`.
  void refuse_shared_parameters(const char* where, const char* because) const;
  Optimizer add_optimizer(GivenOptimizer given);
  Scheduler add_schedule(AnySchedule schedule);

  GradientScope begin_micro_step(const std::vector<const void*>& models);
  GradientScope begin_no_sync(const std::vector<const void*>& models);
  void trigger_sync_of(const std::vector<const void*>& models);
  GradientSyncs syncs_of(const std::vector<const void*>& models) const;
  GradientSyncs hold_back(GradientSyncs syncs);
  void release(const GradientSyncs& held);
  void scale_gradients(double factor);
  double part_of_group() const;
  at::Tensor scaled_loss(const at::Tensor& loss, double factor);
  void run_backward(const at::Tensor& loss, double factor, const BackwardOptions& options = {});
  void abandon_backward() noexcept;
  void drop_unended() noexcept;
  void begin_of_program(const BackwardSteps& steps);
  void end_of_program(const BackwardSteps& steps);
  void meet_gradient(const std::function<void()>& judge);
  void warn_of_unused_precision();
  void clear_gradients();
  void make_optimizers_equal(const char* where);
  void unscale_gradients_of(const std::vector<at::Tensor>& parameters);

  /// Those who write one checkpoint together, and all who must agree that it is there: the same
  /// unless each host saves for itself.
  struct SavingGroups {
    Group all;
    Group disk;
  };
  using AfterCommit = std::function<void(const SavingGroups& groups)>;
  static std::vector<std::string> told_by_disks(
      const SavingGroups& groups,
      const std::filesystem::path& folder,
      const std::function<std::string()>& say);
  void configure_project();
  std::filesystem::path checkpoints_folder() const;
  std::optional<std::filesystem::path> newest_checkpoint(checkpoint::Verify verify);
  std::filesystem::path save_numbered(const SaveStateOptions& options);
  void save(
      const std::filesystem::path& folder,
      const SaveStateOptions& options,
      const AfterCommit& after);
  void expect_finished_device() const;
  std::string agree_on_save(const std::filesystem::path& folder);
  checkpoint::Contents collect_state(
      checkpoint::Contents& whole, nlohmann::json& meta, const SaveStateOptions& options);
  void collect_training(
      checkpoint::Contents& contents,
      checkpoint::Contents& whole,
      nlohmann::json& meta,
      const std::set<size_t>& taken_over,
      const SaveStateOptions& options);
  void unshard_while(const SavingGroups& groups, const std::function<void()>& body);
  void collect_position(checkpoint::Contents& contents);
  void collect_accumulation(checkpoint::Contents& contents);
  void collect_objects(checkpoint::Contents& contents, nlohmann::json& meta);
  struct Loading;
  /// What tells one save from others: its id, or where it has none what it was after.
  struct SavedAs {
    std::string id;
    std::vector<int64_t> steps;  ///< Updates of each optimizer.
    bool verified = true;        ///< Its files were to be proven.
  };
  /// Check a folder of ours, or of Accelerate's, and add what puts it in place.
  SavedAs check_saved(
      const std::filesystem::path& folder,
      const LoadStateOptions& options,
      std::vector<std::function<void()>>& apply);
  SavedAs check_import(
      const std::filesystem::path& folder, std::vector<std::function<void()>>& apply);
  void expect_same_save(const std::filesystem::path& folder, const SavedAs& saved);
  void check_models(Loading& loading);
  void check_own_buffers(Loading& loading, size_t model);
  void check_optimizers(Loading& loading);
  void check_comm_hooks(Loading& loading);
  void check_accumulation(Loading& loading);
  void check_loop(Loading& loading);
  void check_positions(Loading& loading);
  void check_objects(Loading& loading);
  void add_checkpointable(AnyCheckpointable object);
  void save_model_tensors(
      const NamedTensors& tensors,
      const std::filesystem::path& folder,
      const checkpoint::SaveModelOptions& options);

  void resume_if_asked(bool in_epochs);
  void between_batches();
  bool is_stop_agreed();
  void leave_preempted();

  at::Tensor gather_samples(const at::Tensor& tensor);
  template <typename T>
  void check_same_values(const char* operation, const T& value, bool with_sizes = true) {
    lockstep::check_same_values(group(), debug(), operation, value, with_sizes);
  }
  bool debug() const;
  void forget_prepared();

  std::unique_ptr<State> state_;
};

}  // namespace lockstep
