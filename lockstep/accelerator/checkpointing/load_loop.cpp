// SPDX-License-Identifier: Apache-2.0
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/accelerator/checkpointing/loading.h"
#include "lockstep/accelerator/training_state/non_finite_json.h"
#include "lockstep/accelerator/training_state/saved_state.h"
#include "lockstep/accelerator/training_state/training_state.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/rank.h"
#include "lockstep/storage/manifest.h"
#include "lockstep/storage/state_files.h"

namespace lockstep {
namespace {

namespace files = storage::state_files;

SavedAccumulation accumulation_of_rank(const Loading& loading, int rank) {
  return read_saved_accumulation(
      loading.reader,
      files::of_rank("accumulation", rank, ".json"),
      loading.targets.objects.optimizers.size());
}

/// Returns this process's share of the items that backward(loss_sum, count) has counted.
std::optional<double> counted_share(const Loading& loading, const SavedAccumulation& saved) {
  std::optional<double> counted = saved.counted;
  if (counted && loading.resharded) {
    for (int rank = 1; rank < loading.saved_by; ++rank) {
      *counted += accumulation_of_rank(loading, rank).counted.value_or(0);
    }
    *counted /= loading.processes();
  }
  return counted;
}

/// Checks gradients that no update has used.
void check_unused_gradients(Loading& loading, bool counted) {
  const std::vector<PreparedModel>& models = loading.targets.objects.models;
  for (size_t i = 0; i < models.size(); ++i) {
    const auto file_of = [&](int rank) { return files::gradients(i, rank); };
    const std::string file = file_of(loading.source());
    if (!loading.reader.has(file)) {
      continue;
    }
    NamedTensors gradients;
    if (loading.resharded) {
      // Equal shares of the same sum: of means over processes, or with counts of plain sums.
      gradients = sum_of(
          loading.of_all_ranks(file_of), 1.0 / (counted ? loading.processes() : loading.saved_by));
    } else {
      gradients = loading.reader.tensors(file);
    }
    loading.apply.push_back(check_gradients(models[i].parameters(), gradients, loading.path(file)));
  }
}

void check_accumulation(Loading& loading) {
  const TrainingStep& step = loading.targets.step;
  const SavedAccumulation saved = accumulation_of_rank(loading, loading.source());
  if (saved.within && saved.num_steps != step.accumulation().num_steps) {
    throw CheckpointError(
        loading.path(files::of_rank("accumulation", loading.source(), ".json")),
        fmt::format(
            "was saved within a group of {} accumulation steps; this program has {}",
            saved.num_steps,
            step.accumulation().num_steps));
  }
  const std::optional<double> counted = counted_share(loading, saved);
  loading.apply.emplace_back([&targets = loading.targets, saved, counted] {
    targets.step.load_position(
        {.sync_gradients = !saved.within,
         .step = saved.step,
         .in_group = saved.in_group,
         .counted = counted});
    targets.finite.load_state(saved.non_finite);
    for (size_t i = 0; i < targets.objects.optimizers.size(); ++i) {
      targets.objects.optimizers[i].set_gradients_due(saved.due[i]);
    }
  });
  check_unused_gradients(loading, counted.has_value());
}

void check_scaler(Loading& loading) {
  LossScaling& scaling = loading.targets.step.scaling();
  const GradScaler* const scaler = scaling.scaler();
  const storage::SavedMeta& saved = loading.saved;
  if ((scaler != nullptr) != saved.scaler.has_value()) {
    throw CheckpointError(
        loading.reader.path().string(),
        scaler != nullptr ? "was saved without fp16's loss scaler; this program uses fp16"
                          : "was saved with fp16's loss scaler; this program does not use fp16");
  }
  if (scaler == nullptr) {
    return;
  }
  try {
    scaler->check_state(*saved.scaler);
  } catch (const ConfigError& error) {
    throw CheckpointError(
        loading.path(storage::kManifestName),
        "holds no loss scale in meta.scaler; " + without_rank_suffix(error.what()));
  }
  loading.apply.emplace_back([&scaling, state = *saved.scaler] { scaling.load(state); });
}

void check_schedulers(Loading& loading) {
  const std::vector<Scheduler>& schedulers = loading.targets.objects.schedulers;
  const storage::SavedMeta& saved = loading.saved;
  if (loading.options.may_lack_schedulers && schedulers.empty() && !saved.schedulers.empty()) {
    log_warning(fmt::format(
        "{} has a learning rate schedule, which is not loaded: this program prepared none; prepare "
        "one to continue it",
        loading.reader.path().string()));
    return;
  }
  loading.must_match(
      "schedulers",
      saved.schedulers.size(),
      schedulers.size(),
      "prepare the same number, or load without them: LoadStateOptions::schedulers = false, an "
      "engine's load_lr_scheduler_states = false");
  for (size_t i = 0; i < schedulers.size(); ++i) {
    loading.apply.push_back(schedulers[i].check_state(
        saved.schedulers[i],
        loading.path(storage::kManifestName),
        fmt::format("meta.schedulers[{}]", i)));
  }
}

/// Puts all loaders at the beginning of their first epoch.
void begin_loaders(Loading& loading) {
  log_warning(fmt::format(
      "{} has no position of a loader, so the loaders begin with their first batch",
      loading.reader.path().string()));
  for (const auto& loader : loading.targets.objects.loaders) {
    loading.apply.emplace_back([loader] { loader->load_cursor({.seed = loader->cursor().seed}); });
  }
}

void check_loaders(Loading& loading) {
  const auto& loaders = loading.targets.objects.loaders;
  if (loading.options.may_lack_positions && loading.saved.loaders == 0 && !loaders.empty()) {
    begin_loaders(loading);
    return;
  }
  loading.must_match("loaders", loading.saved.loaders, loaders.size());
  const auto positions_of = [&](int rank) {
    const std::string file = files::of_rank("loaders", rank, ".json");
    return read_saved_positions(loading.reader, file, loaders.size());
  };
  const auto own = positions_of(loading.source());
  for (size_t i = 0; i < loaders.size(); ++i) {
    // Rank 0 has the most batches of all ranks, so its position counts for all.
    const bool other_rounds = own[i].global_batch_rows != loaders[i]->layout().global_batch_rows();
    loading.apply.push_back(check_loader(loaders[i], other_rounds ? positions_of(0)[i] : own[i]));
  }
}

/// Continues the program's epochs() ranges. A checkpoint of another version has one range, which
/// its first loader counted.
void check_epochs(Loading& loading) {
  EpochCounter::Place place;
  for (size_t i = 0; i < loading.saved.epoch_ranges.size(); ++i) {
    place.push_back({loading.saved.epoch_ranges[i], loading.saved.epochs_done[i]});
  }
  loading.apply.emplace_back([&targets = loading.targets, place = std::move(place)] {
    const auto& loaders = targets.objects.loaders;
    const bool is_counted_by_loader = place.empty() && !loaders.empty();
    targets.epochs.resume(
        is_counted_by_loader ? EpochCounter::Place{{1, loaders.front()->epoch()}} : place);
  });
}

}  // namespace

void check_loop(Loading& loading) {
  if (loading.options.optimizers) {
    check_scaler(loading);
  }
  if (loading.options.schedulers) {
    check_schedulers(loading);
  }
  if (loading.options.optimizers) {
    check_accumulation(loading);
  }
}

void check_positions(Loading& loading) {
  check_loaders(loading);
  check_epochs(loading);
  const int source = loading.rank() % loading.saved_by;
  const std::string file = files::of_rank("random_states", source, ".safetensors");
  loading.apply.push_back(check_random_state(
      loading.reader.tensors(file),
      loading.rank() < loading.saved_by ? 0 : loading.rank(),
      loading.path(file),
      loading.targets.objects.context.device));
}

void check_registered_objects(Loading& loading) {
  const std::vector<AnyCheckpointable>& objects = loading.targets.registered.objects();
  const std::vector<bool>& differ = loading.saved.objects_differ;
  if (differ.size() != objects.size()) {
    throw CheckpointError(
        loading.reader.path().string(),
        fmt::format(
            "holds {} custom objects, this program registered {} for checkpointing",
            differ.size(),
            objects.size()));
  }
  for (size_t i = 0; i < objects.size(); ++i) {
    const bool each = differ[i];
    if (each && loading.resharded) {
      throw CheckpointError(
          loading.reader.path().string(),
          fmt::format(
              "custom object {} has a different state for each of {} processes, but this job has "
              "{}; start {} processes, or register objects with the same state in all processes",
              i,
              loading.saved_by,
              loading.processes(),
              loading.saved_by));
    }
    const std::string stem = each ? files::object_of_rank(i, loading.rank()) : files::object(i);
    ObjectState saved(with_non_finite(loading.reader.json(stem + ".json")));
    if (loading.reader.has(stem + ".safetensors")) {
      saved.tensors = loading.reader.tensors(stem + ".safetensors");
    }
    loading.apply.emplace_back(
        [object = objects[i], saved = std::move(saved)] { object.load_state_dict(saved); });
  }
}

}  // namespace lockstep
