// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/backward/accumulation_check.h"
#include "lockstep/accelerator/backward/unprepared_leaves.h"
#include "lockstep/accelerator/loop/active_loaders.h"
#include "lockstep/accelerator/loop/loop_state.h"
#include "lockstep/base/program/stop_request.h"
#include "lockstep/checkpoint/background_save.h"
#include "lockstep/offload/offloaded_storage.h"
#include "lockstep/optim/state/optimizer_state.h"
#include "lockstep/storage/file/project_lock.h"
#include "lockstep/sync/backward_hooks.h"
#include "lockstep/sync/data_parallel.h"
#include "lockstep/sync/local_sgd/local_sgd.h"
#include "lockstep/tracking/tracker.h"
#include "lockstep/zero/coordinator/init.h"
#include "lockstep/zero/sharding.h"

namespace lockstep {

/// What an Accelerator holds; shared by its sources alone.
struct Accelerator::State {
  struct Model {
    const void* id;
    std::string
        prefix;  ///< Of its parameters' names in checkpoints: "" for the first, "model_1." ...
    Tensors parameters;
    Tensors buffers;
    Classes classes;
    std::shared_ptr<DataParallel> parallel;  ///< Under ZeRO one that does nothing.
    std::shared_ptr<GradientSync> sync;      ///< `parallel`, or what shards; null until it does.
  };

  /// What checkpoints call the parameters of all models. ConfigError, in the name of `where`, for
  /// any other parameter.
  ParameterName parameter_names(const char* where) const;
  /// The same, once every parameter of every optimizer was found to have such a name.
  ParameterName optimizer_names(const char* where) const;

  AcceleratorOptions options;
  WorldSpec world;
  Group group;
  /// Under `group`; null in one process, and where the program gave the group.
  std::shared_ptr<comm::RenewableTransport> transport;
  at::Device device = at::kCPU;
  std::vector<Model> models;
  bool trains_in_16_bits = false;  ///< Parameters of a model, which ZeRO may have masters of.
  /// Those of `models`, as the optimizers see them: also of models prepared after an optimizer.
  DataParallels parallels;
  /// Scopes under way in which a model's gradients stay here.
  std::map<const GradientSync*, int> holds;
  /// Under ZeRO, once model and optimizer are prepared.
  std::shared_ptr<zero::Sharding> sharding;
  /// Who runs the backward under way: a call of backward(), or the program itself, of a loss that
  /// scale_loss gave.
  enum class Runner { kNobody, kThis, kProgram };
  Runner runner = Runner::kNobody;
  int program_backward = -1;  ///< The program's, as autograd numbers it.
  int judged_backward = -1;   ///< The last that nobody told of, and that was let through.
  /// What sees those.
  std::unique_ptr<BackwardHooks> unknown;
  bool judged_by_others = false;  ///< By the judge of a caller of watch_unknown_backwards.
  size_t judged_models = 0;       ///< Else: how many of `models` are watched.
  /// ConfigError for a backward in accumulate() that divides by no micro-steps.
  void refuse_undivided_backward() const;
  /// ConfigError for a backward of several processes without any prepared model.
  void expect_model() const;
  AccumulationCheck accumulation_check;
  int64_t steps_when_noted = 0;  ///< LoopState::prepared_steps when it noted parameters.
  /// Chooses what `accumulation_check` looks at, once models or optimizers are prepared.
  void watch_accumulation();
  /// Notes parameters after a backward whose gradients no plain step() may use.
  void note_for_accumulation_check();
  /// ConfigError if parameters changed since that backward without a prepared optimizer's step.
  void refuse_unprepared_update();
  /// Of all prepared models.
  std::set<const void*> prepared_parameters() const;
  UnpreparedLeaves unprepared_leaves;
  /// Whether all ranks look for such parameters in the backward under way: trained, of no model.
  bool looks_for_unprepared() const;
  /// See LoopState::agree_on_unprepared.
  bool agree_on_unprepared(const std::vector<at::Tensor>& parameters);
  /// For hooks that may live longer than this.
  std::shared_ptr<const void> alive = std::make_shared<int>(0);
  /// What zero_init has built before there is `sharding`.
  std::vector<std::unique_ptr<zero::Init>> inits;
  /// What is left of it becomes the sharding's to bring. Collective.
  void hand_over_inits();
  /// Stage 3: parameters come and go.
  bool is_sharded_param() const {
    return sharding != nullptr && sharding->coordinator() != nullptr;
  }
  /// Their model is saved by the main process, as whole tensors.
  bool saves_whole() const {
    return is_sharded_param() && options.zero->state_dict_type == StateDictType::kFullStateDict;
  }
  std::vector<Optimizer> optimizers;
  /// Holds the optimizers whose classes have state_dict() and load_state_dict().
  std::map<const torch::optim::Optimizer*, AnyCheckpointable> own_optimizer_states;
  /// Null for any other.
  const AnyCheckpointable* own_state_of(const Optimizer& optimizer) const {
    const auto found = own_optimizer_states.find(&optimizer.inner());
    return found == own_optimizer_states.end() ? nullptr : &found->second;
  }
  std::vector<Scheduler> schedulers;
  std::shared_ptr<LoopState> loop = std::make_shared<LoopState>();
  std::vector<std::shared_ptr<data::LoaderCore>> loaders;
  std::shared_ptr<ActiveLoaders> active;
  /// Of the prepare() under way.
  std::vector<Optimizer> optimizers_in_call;
  std::vector<Scheduler> unbound;

  Precision precision = Precision::kNo;
  bool autocast_used = false;
  bool warned_of_precision = false;
  bool debug = false;
  bool joining = false;
  /// Every process has loaded its own optimizer state, for a LocalSgd to go on from.
  bool optimizers_differ = false;
  /// Of the models that have one, in the order they were made.
  std::vector<std::pair<const void*, std::shared_ptr<LocalSgdCore>>> local_sgds;
  /// Updates counted when a checkpoint was saved, for LocalSgds made after it was loaded.
  std::vector<std::optional<int64_t>> restored_local_steps;
  bool triggered = false;
  GradientNorms norms;
  /// Since offload_states.
  std::map<OffloadStateType, offload::OffloadedStorage> offloaded;
  std::vector<std::shared_ptr<tracking::Tracker>> trackers;
  bool trackers_open = false;

  /// Keeps other jobs out of project_dir; of the process that looks at the disk.
  std::optional<storage::ProjectLock> project_lock;
  std::vector<AnyCheckpointable> objects;
  HookList<SaveStatePreHook> save_hooks;
  HookList<LoadStatePreHook> load_hooks;
  std::optional<Group> saving;  ///< Those who write one checkpoint together.
  /// Each host's processes write to a disk of their own.
  bool saves_on_each_host() const { return saving->size() != group.size(); }
  int writers_per_rank = 1;  ///< The same on all ranks.
  bool loaded = false;       ///< The program has loaded a state, or tried to.
  bool resume_pending = false;
  /// Names of checkpoints that a resume passed over; known to the process that looked.
  std::set<std::string> damaged;
  int64_t steps_at_save = 0;  ///< Updates at the last save that was made by itself, or loaded.

  std::unique_ptr<StopRequests> stop_requests;
  bool preemption_requested = false;
  std::optional<std::chrono::steady_clock::time_point> last_asked;
  int64_t batches_between_asking = 1;
  int64_t batches_until_asking = 1;

  SaveTimings timings;
  double background_write_ms = 0;  ///< Read after wait() only.
  std::shared_ptr<checkpoint::Contents> snapshot = std::make_shared<checkpoint::Contents>();
  std::optional<SavingGroups> background_groups;
  checkpoint::BackgroundSave background;  ///< Last: its thread uses what stands above.
};

}  // namespace lockstep
