// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/checkpointing/state_collector.h"

#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/accelerator/training_state/saved_optimizer.h"
#include "lockstep/accelerator/training_state/training_state.h"
#include "lockstep/optim/state/optimizer_state.h"
#include "lockstep/storage/state_files.h"

namespace lockstep {
namespace {

namespace files = storage::state_files;

/// Removes the frozen ones of `parameters` from `tensors`, and returns their names.
std::vector<std::string> remove_frozen(const NamedTensors& parameters, NamedTensors& tensors) {
  std::set<const void*> frozen;
  for (const NamedTensor& item : parameters) {
    if (!item.tensor.requires_grad()) {
      frozen.insert(item.tensor.unsafeGetTensorImpl());
    }
  }
  std::vector<std::string> names;
  std::erase_if(tensors, [&](const NamedTensor& item) {
    const bool is_frozen = frozen.contains(item.tensor.unsafeGetTensorImpl());
    if (is_frozen) {
      names.push_back(item.name);
    }
    return is_frozen;
  });
  return names;
}

int64_t bytes_of(const NamedTensors& tensors) {
  int64_t bytes = 0;
  for (const NamedTensor& item : tensors) {
    bytes += static_cast<int64_t>(item.tensor.nbytes());
  }
  return bytes;
}

}  // namespace

CollectedState StateCollector::collect(const SaveStateOptions& options) {
  CollectedState state;
  StateBeingSaved being_saved{.contents = state.contents, .models = objects_.models.size()};
  state.meta = {{"processes", objects_.context.size()}, {"loaders", objects_.loaders.size()}};
  step_.scaling().update_if_due();  // Collective, so before anything may throw on one process.
  try {
    // Thrown on one process, the others would wait in the commit.
    registered_.save_hooks().run(being_saved);
    const SavingGroups& groups = project_.groups();
    checkpoint::EvenShares shares(
        static_cast<size_t>(groups.disk.size()) * static_cast<size_t>(project_.writers_per_rank()));
    collect_models(state, being_saved.taken_over, options, shares);
    collect_optimizers(state, shares);
    collect_position(state.contents);
  } catch (const std::exception& error) {
    state.contents.fail(error.what());
  }
  registered_.collect(state.contents, state.meta, project_.groups());
  state.contents.must_agree(
      "the models that a hook saves", fmt::format("{}", fmt::join(being_saved.taken_over, ", ")));
  state.meta["models_taken_over"] = being_saved.taken_over;
  state.meta["schedulers"] = nlohmann::json::array();
  for (const Scheduler& scheduler : objects_.schedulers) {
    state.meta["schedulers"].push_back(scheduler.state());
  }
  for (const EpochCounter::Level& level : epochs_.place()) {
    state.meta["epoch_ranges"].push_back(level.ranges);
    state.meta["epochs_done"].push_back(level.done);
  }
  if (const GradScaler* const scaler = step_.scaler()) {
    state.meta["scaler"] = scaler->state();
  }
  return state;
}

SavedWhere StateCollector::where() const {
  return {.on_each_host = project_.groups().on_each_host(), .leads = project_.groups().leads()};
}

void StateCollector::collect_models(
    CollectedState& state,
    const std::set<size_t>& excluded,
    const SaveStateOptions& options,
    checkpoint::EvenShares& shares) {
  const bool leads = project_.groups().leads();
  std::vector<std::vector<std::string>> left_out(objects_.models.size());
  for (size_t i = 0; i < objects_.models.size(); ++i) {
    if (excluded.contains(i)) {
      continue;
    }
    const PreparedModel& model = objects_.models[i];
    NamedTensors tensors = without_ties(model.parameters(), model.buffers());
    if (options.exclude_frozen_parameters) {
      left_out[i] = remove_frozen(model.parameters(), tensors);
    }
    const bool is_sharded =
        objects_.shards_parameters() || (objects_.sharding && objects_.sharding->has_masters());
    if (is_sharded) {
      objects_.sharding->write_back();
    }
    if (is_sharded && !objects_.saves_full_state_dict()) {
      add_sharded_model(
          state.contents, files::numbered("model", i), tensors, *objects_.sharding, where());
      continue;
    }
    if (!is_sharded) {
      shares.claim(0, bytes_of(tensors));
    }
    if (leads) {
      checkpoint::Contents& contents = is_sharded ? state.full_tensors : state.contents;
      contents.add_tensors(files::model(i), std::move(tensors), {{"format", "pt"}});
    }
  }
  state.meta["models"] = objects_.models.size();
  if (options.exclude_frozen_parameters) {
    state.meta["left_out"] = left_out;
  }
}

void StateCollector::collect_optimizers(CollectedState& state, checkpoint::EvenShares& shares) {
  const ParameterName names = objects_.parameter_names("save_state");
  nlohmann::json steps = nlohmann::json::array();
  for (size_t i = 0; i < objects_.optimizers.size(); ++i) {
    steps.push_back(objects_.optimizers[i].steps());
    collect_optimizer(state.contents, i, names, shares);
  }
  state.meta["optimizer_steps"] = steps;
  state.meta["step"] = objects_.optimizers.empty() ? 0 : objects_.optimizers.front().steps();
  if (!local_sgds_.empty()) {
    state.meta["local_sgd_steps"] = local_sgds_.steps();
  }
}

void StateCollector::collect_optimizer(
    checkpoint::Contents& contents,
    size_t index,
    const ParameterName& names,
    checkpoint::EvenShares& shares) {
  const SavingGroups& groups = project_.groups();
  // With local SGD the processes' states have diverged, and each process saves its own.
  const bool of_each_rank = !local_sgds_.empty();
  const std::string stem = of_each_rank ? files::optimizer_of_rank(index, objects_.context.rank())
                                        : files::optimizer(index);
  torch::optim::Optimizer& inner = objects_.optimizers[index].inner();
  if (!objects_.sharding) {
    if (const AnyCheckpointable* own = objects_.own_state_of(objects_.optimizers[index])) {
      if (of_each_rank || groups.leads()) {
        add_own_optimizer(contents, stem, *own);
      }
      return;
    }
  }
  if (objects_.sharding) {
    add_sharded_optimizer(contents, stem, inner, *objects_.sharding, names, where());
  } else if (of_each_rank) {
    contents.add_tensors(stem + ".safetensors", optimizer_tensors(inner, names));
  } else {
    contents.add_shared(
        stem,
        optimizer_tensors(inner, names),
        groups.disk.rank(),
        static_cast<size_t>(project_.writers_per_rank()),
        shares);
  }
  if (of_each_rank || groups.leads()) {
    contents.add_json(stem + ".json", optimizer_settings(inner));
  }
}

/// Collects what differs between processes: positions, random numbers, gradients.
void StateCollector::collect_position(checkpoint::Contents& contents) {
  const int rank = objects_.context.rank();
  for (size_t i = 0; i < objects_.models.size(); ++i) {
    const CommHookState hook = objects_.models[i].parallel->hook_state();
    if (hook.iteration > 0) {
      const std::string stem = files::numbered("comm_hook", i);
      contents.add_tensors(files::of_rank(stem, rank, ".safetensors"), hook.tensors);
      contents.add_json(files::of_rank(stem, rank, ".json"), {{"iteration", hook.iteration}});
    }
  }
  if (!objects_.context.options.data_parallel.broadcast_buffers && !project_.groups().leads()) {
    for (size_t i = 0; i < objects_.models.size(); ++i) {
      contents.add_tensors(
          files::of_rank(files::numbered("buffers", i), rank, ".safetensors"),
          without_ties(objects_.models[i].buffers(), {}));
    }
  }
  collect_loaders(contents);
  contents.add_tensors(
      files::of_rank("random_states", rank, ".safetensors"),
      random_states(objects_.context.device));
  collect_accumulation(contents);
}

void StateCollector::collect_loaders(checkpoint::Contents& contents) {
  nlohmann::json cursors = nlohmann::json::array();
  for (const auto& loader : objects_.loaders) {
    cursors.push_back(
        {{"cursor", active_.position_to_save(*loader)},
         {"samples", loader->layout().samples()},
         {"round_rows", loader->layout().global_batch_rows()}});
  }
  contents.add_json(
      files::of_rank("loaders", objects_.context.rank(), ".json"), std::move(cursors));
}

/// Collects the position in an accumulation group, and the gradients that no update has used yet.
void StateCollector::collect_accumulation(checkpoint::Contents& contents) {
  const AccumulationPosition& position = step_.position();
  const int rank = objects_.context.rank();
  std::set<const void*> due;
  nlohmann::json accumulation{
      {"step", position.step},
      {"in_group", position.in_group},
      {"within", !position.sync_gradients},
      {"num_steps", step_.accumulation().num_steps},
      {"counted", position.counted ? nlohmann::json(*position.counted) : nlohmann::json(nullptr)},
      {"non_finite", finite_.state()},
      {"due", nlohmann::json::array()}};
  for (const Optimizer& optimizer : objects_.optimizers) {
    accumulation["due"].push_back(optimizer.gradients_are_due());
    if (!optimizer.gradients_are_due()) {
      continue;
    }
    if (objects_.sharding) {
      contents.fail(
          "gradients that no update has used yet cannot be saved with ZeRO; save where an "
          "accumulation group ends, after step() and zero_grad()");
    }
    for (const at::Tensor& parameter : optimizer.parameters()) {
      due.insert(parameter.unsafeGetTensorImpl());
    }
  }
  for (size_t i = 0; !due.empty() && i < objects_.models.size(); ++i) {
    NamedTensors parameters = objects_.models[i].parameters();
    std::erase_if(parameters, [&](const NamedTensor& item) {
      return !due.contains(item.tensor.unsafeGetTensorImpl());
    });
    contents.add_tensors(files::gradients(i, rank), gradients_of(parameters));
  }
  contents.add_json(files::of_rank("accumulation", rank, ".json"), std::move(accumulation));
}

}  // namespace lockstep
