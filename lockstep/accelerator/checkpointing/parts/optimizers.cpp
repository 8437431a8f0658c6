// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "lockstep/accelerator/checkpointing/parts/model_values.h"
#include "lockstep/accelerator/checkpointing/parts/parts.h"
#include "lockstep/accelerator/prepare/divided_state.h"
#include "lockstep/accelerator/training_state/saved_optimizer.h"
#include "lockstep/accelerator/training_state/sharded_state.h"
#include "lockstep/optim/flat_optimizer.h"
#include "lockstep/optim/state/optimizer_state.h"
#include "lockstep/storage/state_files.h"

namespace lockstep::internal {
namespace {

namespace files = storage::state_files;

/// The saved state of an optimizer, and the stem of the files that it is in.
struct SavedTensors {
  NamedTensors tensors;
  std::string stem;
};

/// Saves and loads the optimizers' states and numbers of updates.
class OptimizersPart final : public CheckpointPart {
 public:
  OptimizersPart(PreparedObjects& objects, const LocalSgdScopes& local_sgds)
      : objects_(objects), local_sgds_(local_sgds) {}

  void collect(StateToSave& state) const override;
  bool is_loaded(const StateToLoad& state) const override { return state.loads_optimizers(); }
  void check(StateToLoad& state) const override;

 private:
  void collect_optimizer(StateToSave& state, size_t index, const ParameterName& names) const;
  SavedTensors saved_tensors(
      const StateToLoad& state, size_t index, bool of_each_rank, const ParameterName& names) const;

  PreparedObjects& objects_;
  const LocalSgdScopes& local_sgds_;
};

void OptimizersPart::collect(StateToSave& state) const {
  const ParameterName names = objects_.parameter_names("save_state");
  nlohmann::json steps = nlohmann::json::array();
  for (size_t i = 0; i < objects_.optimizers.size(); ++i) {
    steps.push_back(objects_.optimizers[i].steps());
    collect_optimizer(state, i, names);
  }
  state.meta["optimizer_steps"] = steps;
  state.meta["step"] = objects_.optimizers.empty() ? 0 : objects_.optimizers.front().steps();
}

void OptimizersPart::collect_optimizer(
    StateToSave& state, size_t index, const ParameterName& names) const {
  const SavingGroups& groups = state.groups;
  // With local SGD the processes' states have diverged, and each process saves its own.
  const bool of_each_rank = !local_sgds_.empty();
  const std::string stem =
      of_each_rank ? files::optimizer_of_rank(index, state.rank) : files::optimizer(index);
  torch::optim::Optimizer& inner = objects_.optimizers[index].inner();
  if (!objects_.sharding) {
    if (const AnyCheckpointable* own = objects_.own_state_of(objects_.optimizers[index])) {
      if (objects_.stage() != nullptr) {
        state.contents.fail(
            "an optimizer of an own class saves its state itself, so that of the other stages of "
            "the pipeline would be lost; expected one of lockstep::optim or torch::optim");
      }
      if (of_each_rank || groups.is_writer()) {
        add_own_optimizer(state.contents, stem, *own);
      }
      return;
    }
  }
  const comm::MeshGroups& mesh = objects_.context.mesh;
  if ((mesh.model.size() > 1 || mesh.experts.size() > 1) && !of_each_rank) {
    // Gathered tensors would take the full state's memory on every process if all wrote a share.
    const NamedTensors own = optimizer_tensors(inner, names);
    NamedTensors full = objects_.sharding
                            ? full_sharded_optimizer_tensors(objects_, own, groups.is_writer())
                            : full_optimizer_tensors(objects_, own, groups.is_writer());
    if (groups.is_writer()) {
      state.contents.add_tensors(stem + ".safetensors", std::move(full));
    }
  } else if (objects_.sharding) {
    add_sharded_optimizer(
        state.contents,
        stem,
        inner,
        *objects_.sharding,
        names,
        {.on_each_host = groups.on_each_host(), .is_writer = groups.is_writer()});
  } else if (of_each_rank) {
    state.contents.add_tensors(stem + ".safetensors", optimizer_tensors(inner, names));
  } else {
    state.contents.add_shared(
        stem,
        optimizer_tensors(inner, names),
        groups.disk.rank(),
        static_cast<size_t>(state.writers_per_rank),
        state.shares);
  }
  if (of_each_rank || groups.is_writer()) {
    state.contents.add_json(stem + ".json", optimizer_settings(inner));
  }
}

/// Returns the state that this process continues from. `of_each_rank`: saved within local SGD.
SavedTensors OptimizersPart::saved_tensors(
    const StateToLoad& state, size_t index, bool of_each_rank, const ParameterName& names) const {
  std::string stem =
      of_each_rank ? files::optimizer_of_rank(index, state.source()) : files::optimizer(index);
  if (of_each_rank && state.is_resharded()) {
    state.expect_same_mesh(stem + ".safetensors");
    return {
        .tensors = mean_of(state.of_all_ranks(
            [&](int rank) { return files::optimizer_of_rank(index, rank) + ".safetensors"; })),
        .stem = std::move(stem)};
  }
  if (of_each_rank) {
    return {.tensors = state.reader.tensors(stem + ".safetensors"), .stem = std::move(stem)};
  }
  if (is_in_parts(state.reader, stem)) {
    return {
        .tensors = own_optimizer_part(state.reader, stem, *objects_.sharding, names),
        .stem = std::move(stem)};
  }
  NamedTensors tensors = own_optimizer_tensors(objects_, state.tensor_set(stem));
  if (objects_.sharding) {
    const auto& flat = dynamic_cast<optim::FlatOptimizer&>(objects_.optimizers[index].inner());
    tensors = own_slices(std::move(tensors), *objects_.sharding, names, flat.traits().factors);
  }
  return {.tensors = std::move(tensors), .stem = std::move(stem)};
}

void OptimizersPart::check(StateToLoad& state) const {
  const ParameterName names = objects_.parameter_names("load_state");
  const storage::SavedMeta& saved = state.saved;
  const bool of_each_rank = saved.local_sgd_steps.has_value();
  state.must_match("optimizers", saved.optimizer_steps.size(), objects_.optimizers.size());
  for (size_t i = 0; i < objects_.optimizers.size(); ++i) {
    state.apply.emplace_back([&objects = objects_, i, steps = saved.optimizer_steps[i]] {
      objects.optimizers[i].set_steps(steps);
    });
    if (const AnyCheckpointable* own = objects_.own_state_of(objects_.optimizers[i])) {
      state.apply.push_back(check_own_optimizer(
          *own,
          state.reader,
          of_each_rank ? files::optimizer_of_rank(i, state.source()) : files::optimizer(i)));
      continue;
    }
    const SavedTensors tensors = saved_tensors(state, i, of_each_rank, names);
    state.apply.push_back(check_optimizer(
        objects_.optimizers[i].inner(),
        names,
        tensors.tensors,
        state.reader.json(tensors.stem + ".json"),
        state.set_path(tensors.stem),
        state.path(tensors.stem + ".json")));
  }
}

}  // namespace

std::unique_ptr<CheckpointPart> optimizers_part(
    PreparedObjects& objects, const LocalSgdScopes& local_sgds) {
  return std::make_unique<OptimizersPart>(objects, local_sgds);
}

}  // namespace lockstep::internal
