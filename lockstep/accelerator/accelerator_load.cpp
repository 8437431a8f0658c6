// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/accelerator_state.h"
#include "lockstep/accelerator/training_state/import_accelerate.h"
#include "lockstep/accelerator/training_state/non_finite_json.h"
#include "lockstep/accelerator/training_state/saved_optimizer.h"
#include "lockstep/accelerator/training_state/saved_state.h"
#include "lockstep/accelerator/training_state/sharded_state.h"
#include "lockstep/accelerator/training_state/training_state.h"
#include "lockstep/base/error.h"
#include "lockstep/base/host/machine.h"
#include "lockstep/base/log.h"
#include "lockstep/base/rank.h"
#include "lockstep/checkpoint/reader.h"
#include "lockstep/flat/copy_values.h"
#include "lockstep/optim/flat_optimizer.h"
#include "lockstep/storage/deepspeed_folder.h"
#include "lockstep/storage/safetensors/saved_values.h"
#include "lockstep/storage/saved_meta.h"
#include "lockstep/storage/state_files.h"
#include "lockstep/storage/write/temp_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
namespace files = storage::state_files;

/// The tensors that each of the processes that saved has in a file of its own.
std::vector<NamedTensors> of_all_ranks(
    const checkpoint::Reader& reader,
    int processes,
    const std::function<std::string(int rank)>& file_of) {
  std::vector<NamedTensors> all;
  for (int rank = 0; rank < processes; ++rank) {
    all.push_back(reader.tensors(file_of(rank)));
  }
  return all;
}

/// "5", or "5, 6" of two optimizers.
std::string updates_text(const nlohmann::json& steps) {
  return steps.empty() ? "no"
                       : fmt::format("{}", fmt::join(steps.get<std::vector<int64_t>>(), ", "));
}

}  // namespace

/// What is being loaded, and what puts it in place once all of it was found good.
struct Accelerator::Loading {
  checkpoint::Reader reader;
  storage::SavedMeta saved;
  checkpoint::ProofShare share;  ///< Of this process.
  LoadStateOptions options;
  int saved_by = 1;  ///< Processes.
  bool resharded = false;
  std::vector<std::function<void()>> apply = {};

  std::string path(const std::string& file) const { return (reader.path() / file).string(); }
  /// Names the file or files of a set of tensors, for messages.
  std::string set_path(const std::string& stem) const {
    const std::string file = stem + ".safetensors";
    return path(
        reader.has(file)            ? file
        : is_in_parts(reader, stem) ? stem + "_part_of_rank_*.safetensors"
                                    : stem + "-*.safetensors");
  }
  void must_match(
      const char* what, size_t there, size_t here, const std::string& remedy = "") const {
    if (there != here) {
      throw CheckpointError(
          reader.path().string(),
          fmt::format(
              "holds {} {}, this program prepared {}{}",
              there,
              what,
              here,
              remedy.empty() ? "" : "; " + remedy));
    }
  }
};

void Accelerator::check_models(Loading& loading) {
  State& state = *state_;
  StateBeingLoaded being_loaded{.checkpoint = loading.reader, .models = state.models.size()};
  state.load_hooks.run(being_loaded);
  loading.must_match("models", loading.saved.models, state.models.size());
  for (size_t i = 0; i < state.models.size(); ++i) {
    if (being_loaded.taken_over.contains(i)) {
      continue;
    }
    if (loading.saved.models_taken_over.contains(i)) {
      throw CheckpointError(
          loading.reader.path().string(),
          fmt::format(
              "model {} was saved by a hook of the program's; register the load_state hook that "
              "reads it",
              i));
    }
    const std::string stem = files::numbered("model", i);
    const bool in_parts = is_in_parts(loading.reader, stem);
    ModelShards shard_slices{
        .current = without_ties(state.models[i].parameters(), state.models[i].buffers()),
        .saved = {}};
    const std::set<std::string>& left_out = loading.saved.left_out[i];
    std::erase_if(shard_slices.current, [&](const NamedTensor& item) {
      return left_out.contains(item.name);  // It stays what it is.
    });
    if (!in_parts) {
      shard_slices.saved = loading.reader.tensor_set(stem, state.writers_per_rank, loading.share);
    }
    if (state.sharding) {
      loading.apply.emplace_back([&state] { state.sharding->finish_parameter_use(); });
      const bool from_fp32_weights = state.options.zero->load_from_fp32_weights;
      shard_slices =
          in_parts
              ? own_model_part(
                    loading.reader, stem, shard_slices.current, *state.sharding, from_fp32_weights)
              : own_model_shards(
                    shard_slices.current,
                    std::move(shard_slices.saved),
                    *state.sharding,
                    from_fp32_weights);
    }
    loading.apply.push_back(check_model(
        shard_slices.current,
        std::move(shard_slices.saved),
        loading.set_path(stem),
        loading.options.strict));
    if (state.sharding) {
      loading.apply.emplace_back(
          [&state, packed = std::move(shard_slices.packed)] { state.sharding->pack(packed); });
    }
    if (in_parts) {
      loading.apply.emplace_back([&state] { state.sharding->gather_parameters(); });
    }
    loading.apply.emplace_back([whole = std::move(shard_slices.whole)] {
      for (const auto& [parameter, value] : whole) {
        flat::copy_values(parameter, value);  // What the masters round to.
      }
    });
    check_own_buffers(loading, i);
  }
}

/// Where buffers do not follow rank 0's, each process goes on with its own.
void Accelerator::check_own_buffers(Loading& loading, size_t model) {
  State& state = *state_;
  const auto file_of = [&](int rank) {
    return files::of_rank(files::numbered("buffers", model), rank, ".safetensors");
  };
  const NamedTensors buffers = without_ties(state.models[model].buffers(), {});
  if (state.options.data_parallel.broadcast_buffers || buffers.empty()) {
    return;
  }
  const std::string file = file_of(process_index());
  if (!loading.resharded) {
    if (loading.reader.has(file)) {
      loading.apply.push_back(
          check_model(buffers, loading.reader.tensors(file), loading.path(file)));
    }
    return;
  }
  std::vector<NamedTensors> all(1);
  for (NamedTensor& item : loading.reader.tensor_set(
           files::numbered("model", model), state.writers_per_rank, loading.share)) {
    const bool is_buffer = std::any_of(buffers.begin(), buffers.end(), [&](const auto& buffer) {
      return buffer.name == item.name;
    });
    if (is_buffer) {
      all[0].push_back(std::move(item));
    }
  }
  for (int rank = 1; rank < loading.saved_by; ++rank) {
    if (loading.reader.has(file_of(rank))) {
      all.push_back(loading.reader.tensors(file_of(rank)));
    }
  }
  loading.apply.push_back(check_model(buffers, mean_of(all), loading.path(file_of(1))));
}

void Accelerator::check_optimizers(Loading& loading) {
  State& state = *state_;
  const ParameterName names = state.parameter_names("load_state");
  const storage::SavedMeta& saved = loading.saved;
  const bool local = saved.local_sgd_steps.has_value();
  loading.must_match("optimizers", saved.optimizer_steps.size(), state.optimizers.size());
  for (size_t i = 0; i < state.optimizers.size(); ++i) {
    loading.apply.emplace_back([&state, i, steps = saved.optimizer_steps[i]] {
      state.optimizers[i].set_steps(steps);
      state.steps_at_save = i == 0 ? steps : state.steps_at_save;
    });
    std::string stem = files::optimizer(i);
    if (const AnyCheckpointable* own = state.own_state_of(state.optimizers[i])) {
      const int rank = loading.resharded ? 0 : process_index();
      loading.apply.push_back(check_own_optimizer(
          *own, loading.reader, local ? files::optimizer_of_rank(i, rank) : stem));
      continue;
    }
    NamedTensors tensors;
    if (local && loading.resharded) {
      stem = files::optimizer_of_rank(i, 0);
      tensors = mean_of(of_all_ranks(loading.reader, loading.saved_by, [&](int rank) {
        return files::optimizer_of_rank(i, rank) + ".safetensors";
      }));
    } else if (local) {
      stem = files::optimizer_of_rank(i, process_index());
      tensors = loading.reader.tensors(stem + ".safetensors");
    } else if (is_in_parts(loading.reader, stem)) {
      tensors = own_optimizer_part(loading.reader, stem, *state.sharding, names);
    } else {
      tensors = loading.reader.tensor_set(stem, state.writers_per_rank, loading.share);
      if (state.sharding) {
        const auto& flat = dynamic_cast<optim::FlatOptimizer&>(state.optimizers[i].inner());
        tensors = own_slices(std::move(tensors), *state.sharding, names, flat.traits().factors);
      }
    }
    loading.apply.push_back(check_optimizer(
        state.optimizers[i].inner(),
        names,
        tensors,
        loading.reader.json(stem + ".json"),
        loading.set_path(stem),
        loading.path(stem + ".json")));
  }
  if (local) {
    loading.apply.emplace_back(
        [&state, counters = *saved.local_sgd_steps, resharded = loading.resharded] {
          state.optimizers_differ = !resharded && state.local_sgds.size() < counters.size();
          for (size_t i = 0; i < counters.size(); ++i) {
            if (i < state.local_sgds.size()) {
              state.local_sgds[i].second->load_steps(counters[i]);
              state.restored_local_steps.emplace_back();
            } else {
              state.restored_local_steps.emplace_back(counters[i]);
            }
          }
        });
  }
}

void Accelerator::check_comm_hooks(Loading& loading) {
  State& state = *state_;
  for (size_t i = 0; i < state.models.size(); ++i) {
    const std::string stem = files::numbered("comm_hook", i);
    const auto tensors_of = [&](int rank) { return files::of_rank(stem, rank, ".safetensors"); };
    const int source = loading.resharded ? 0 : process_index();
    if (!loading.reader.has(tensors_of(source))) {
      // Saved before anything was compressed: what is held back here belongs to another life.
      loading.apply.emplace_back([parallel = state.models[i].parallel] {
        if (parallel->hook_state().iteration > 0) {
          parallel->load_hook_state({});
        }
      });
      continue;
    }
    const std::string counter = files::of_rank(stem, source, ".json");
    const nlohmann::json counted = loading.reader.json(counter);
    // What ranks have still to send counts by its mean.
    CommHookState hook{
        .iteration = storage::SavedValues(counted, loading.path(counter)).count("iteration"),
        .tensors = loading.resharded
                       ? mean_of(of_all_ranks(loading.reader, loading.saved_by, tensors_of))
                       : loading.reader.tensors(tensors_of(source))};
    state.models[i].parallel->check_hook_state(hook);
    loading.apply.emplace_back([parallel = state.models[i].parallel, hook = std::move(hook)] {
      parallel->load_hook_state(hook);
    });
  }
}

void Accelerator::check_accumulation(Loading& loading) {
  State& state = *state_;
  LoopState& loop = *state.loop;
  const int source = loading.resharded ? 0 : process_index();
  const auto read = [&](int rank) {
    return read_saved_accumulation(
        loading.reader, files::of_rank("accumulation", rank, ".json"), state.optimizers.size());
  };
  const SavedAccumulation saved = read(source);
  if (saved.within && saved.num_steps != loop.accumulation.num_steps) {
    throw CheckpointError(
        loading.path(files::of_rank("accumulation", source, ".json")),
        fmt::format(
            "was saved within a group of {} accumulation steps; this program has {}",
            saved.num_steps,
            loop.accumulation.num_steps));
  }
  std::optional<double> counted = saved.counted;
  if (counted && loading.resharded) {
    for (int rank = 1; rank < loading.saved_by; ++rank) {
      *counted += read(rank).counted.value_or(0);
    }
    *counted /= num_processes();
  }
  loading.apply.emplace_back([&state, &loop, saved, counted] {
    loop.step = saved.step;
    loop.in_group = saved.in_group;
    loop.sync_gradients = !saved.within;
    loop.counted = counted;
    loop.finite->load_state(saved.non_finite);
    for (size_t i = 0; i < state.optimizers.size(); ++i) {
      state.optimizers[i].set_gradients_due(saved.due[i]);
    }
  });
  for (size_t i = 0; i < state.models.size(); ++i) {
    const auto file_of = [&](int rank) { return files::gradients(i, rank); };
    if (!loading.reader.has(file_of(source))) {
      continue;
    }
    NamedTensors gradients;
    if (loading.resharded) {
      // Equal shares of the same sum: of means over processes, or with counts of plain sums.
      gradients = sum_of(
          of_all_ranks(loading.reader, loading.saved_by, file_of),
          1.0 / (counted ? num_processes() : loading.saved_by));
    } else {
      gradients = loading.reader.tensors(file_of(source));
    }
    loading.apply.push_back(
        check_gradients(state.models[i].parameters(), gradients, loading.path(file_of(source))));
  }
}

void Accelerator::check_loop(Loading& loading) {
  State& state = *state_;
  LoopState& loop = *state.loop;
  const storage::SavedMeta& saved = loading.saved;
  const std::string manifest = loading.path(storage::kManifestName);
  const bool with_scaler = loading.options.optimizers;
  if (with_scaler && loop.scaler.has_value() != saved.scaler.has_value()) {
    throw CheckpointError(
        loading.reader.path().string(),
        loop.scaler ? "was saved without fp16's loss scaler; this program uses fp16"
                    : "was saved with fp16's loss scaler; this program does not use fp16");
  }
  if (with_scaler && loop.scaler) {
    try {
      loop.scaler->check_state(*saved.scaler);
    } catch (const ConfigError& error) {
      throw CheckpointError(
          manifest, "holds no loss scale in meta.scaler; " + without_rank_suffix(error.what()));
    }
    loading.apply.emplace_back([&loop, scaler = *saved.scaler] {
      loop.scaler_update_due = false;
      loop.scaler->load_state(scaler);
    });
  }
  const bool lacks_schedulers = loading.options.may_lack_schedulers && state.schedulers.empty();
  if (loading.options.schedulers && lacks_schedulers && !saved.schedulers.empty()) {
    log_warning(fmt::format(
        "{} has a learning rate schedule, and this program none: it is left; prepare one to go on "
        "with it",
        loading.reader.path().string()));
  } else if (loading.options.schedulers) {
    loading.must_match(
        "schedulers",
        saved.schedulers.size(),
        state.schedulers.size(),
        "prepare as many, or load without them: LoadStateOptions::schedulers = false, an engine's "
        "load_lr_scheduler_states = false");
  }
  for (size_t i = 0; loading.options.schedulers && i < state.schedulers.size(); ++i) {
    loading.apply.push_back(state.schedulers[i].check_state(
        saved.schedulers[i], manifest, fmt::format("meta.schedulers[{}]", i)));
  }
  if (loading.options.optimizers) {
    check_accumulation(loading);
  }
}

void Accelerator::check_positions(Loading& loading) {
  State& state = *state_;
  loading.must_match("loaders", loading.saved.loaders, state.loaders.size());
  const auto positions_of = [&](int rank) {
    const std::string file = files::of_rank("loaders", rank, ".json");
    return read_saved_positions(loading.reader, file, state.loaders.size());
  };
  const auto own = positions_of(loading.resharded ? 0 : process_index());
  for (size_t i = 0; i < state.loaders.size(); ++i) {
    // Of ranks with unequally many batches rank 0 has the most: what it has seen, all have.
    const bool other_rounds =
        own[i].global_batch_rows != state.loaders[i]->layout().global_batch_rows();
    loading.apply.push_back(
        check_loader(state.loaders[i], other_rounds ? positions_of(0)[i] : own[i]));
  }
  const int random_source = process_index() % loading.saved_by;
  const std::string random_file = files::of_rank("random_states", random_source, ".safetensors");
  loading.apply.push_back(check_random_state(
      loading.reader.tensors(random_file),
      process_index() < loading.saved_by ? 0 : process_index(),
      loading.path(random_file),
      device()));
}

void Accelerator::check_objects(Loading& loading) {
  State& state = *state_;
  const std::vector<bool>& differ = loading.saved.objects_differ;
  if (differ.size() != state.objects.size()) {
    throw CheckpointError(
        loading.reader.path().string(),
        fmt::format(
            "holds {} custom objects, this program registered {} for checkpointing",
            differ.size(),
            state.objects.size()));
  }
  for (size_t i = 0; i < state.objects.size(); ++i) {
    const bool each = differ[i];
    if (each && loading.resharded) {
      throw CheckpointError(
          loading.reader.path().string(),
          fmt::format(
              "custom object {} had a state of its own in each of {} processes, which {} cannot "
              "share; start {}, or register what is the same in all",
              i,
              loading.saved_by,
              num_processes(),
              loading.saved_by));
    }
    const std::string stem = each ? files::object_of_rank(i, process_index()) : files::object(i);
    ObjectState saved(with_non_finite(loading.reader.json(stem + ".json")));
    if (loading.reader.has(stem + ".safetensors")) {
      saved.tensors = loading.reader.tensors(stem + ".safetensors");
    }
    loading.apply.emplace_back(
        [object = state.objects[i], saved = std::move(saved)] { object.load_state_dict(saved); });
  }
}

Accelerator::SavedAs Accelerator::check_saved(
    const fs::path& folder,
    const LoadStateOptions& options,
    std::vector<std::function<void()>>& apply) {
  checkpoint::Reader reader(folder);
  // The processes of a host read the same files: each proves a part, and all hear what one finds.
  const WorldSpec& world = state_->world;
  Loading loading{
      .reader = reader,
      .saved = storage::read_saved_meta(reader),
      .share = {.index = world.local_rank, .of = world.local_size, .nothing = !options.verify},
      .options = options};
  loading.saved_by = loading.saved.processes;
  loading.resharded = loading.saved_by != num_processes();
  if (loading.resharded && loading.reader.world_size() != loading.saved_by) {
    throw CheckpointError(
        folder.string(),
        fmt::format(
            "is the part of one host, saved with save_on_each_node by {} processes; this job has "
            "{}; start as many on as many hosts",
            loading.saved_by,
            num_processes()));
  }
  if (!state_->sharding &&
      (is_in_parts(loading.reader, "model") || is_in_parts(loading.reader, "optimizer"))) {
    throw CheckpointError(
        folder.string(),
        "has the parts of a state that ZeRO divided and each host saved for itself; load it with "
        "the stage, hosts and ranks that saved it");
  }
  check_models(loading);
  if (options.optimizers && !options.models_only) {
    check_optimizers(loading);
  }
  if (!options.models_only) {
    check_comm_hooks(loading);
    check_positions(loading);
    check_loop(loading);
    check_objects(loading);
  }
  if (loading.resharded) {
    log_info(fmt::format(
        "{} was saved by {} processes and goes on with {}",
        folder.string(),
        loading.saved_by,
        num_processes()));
  }
  apply.insert(
      apply.end(),
      std::make_move_iterator(loading.apply.begin()),
      std::make_move_iterator(loading.apply.end()));
  return {
      .id = loading.saved.save_id,
      .steps = loading.saved.optimizer_steps,
      .verified = options.verify};
}

/// All ranks go on, or all throw that they would not go on from the same state. Collective.
void Accelerator::expect_same_save(const fs::path& folder, const SavedAs& saved) {
  const nlohmann::json own{
      {"folder", storage::in_quotes(folder.string())},
      {"id", saved.id},
      {"steps", saved.steps},
      {"verified", saved.verified}};
  const std::vector<nlohmann::json> all = gather_object(own);
  const nlohmann::json& first = all.front();
  for (size_t rank = 1; rank < all.size(); ++rank) {
    const nlohmann::json& other = all[rank];
    if (other.at("id") != first.at("id") || other.at("steps") != first.at("steps")) {
      throw CheckpointError(
          folder.string(),
          fmt::format(
              "cannot be loaded, because ranks would go on from different saves; rank {} got {}, "
              "after {} updates, expected that of rank 0, {}, after {}; give all ranks the same "
              "checkpoint",
              rank,
              other.at("folder").get<std::string>(),
              updates_text(other.at("steps")),
              first.at("folder").get<std::string>(),
              updates_text(first.at("steps"))));
    }
    if (other.at("verified") != first.at("verified")) {
      throw ConfigError(
          "load_state",
          fmt::format(
              "the ranks of a host prove the files together; got verify = {} on rank {} and {} on "
              "rank 0, expected the same on all",
              other.at("verified").get<bool>(),
              rank,
              first.at("verified").get<bool>()));
    }
  }
}

void Accelerator::load_state(const fs::path& folder, const LoadStateOptions& options) {
  State& state = *state_;
  refuse_offloaded("load_state");
  wait_for_save();
  if (state.resume_pending) {
    log_warning(fmt::format(
        "asked to resume, but the program loads {} itself; call resume_latest() instead where "
        "there "
        "is a checkpoint",
        folder.string()));
  }
  state.loaded = true;
  state.batches_between_asking = state.batches_until_asking = 1;
  std::vector<std::function<void()>> apply;
  apply.emplace_back([this] {
    clear_gradients();  // Of a group that the loaded state knows nothing of.
    state_->restored_local_steps.clear();
    state_->optimizers_differ = false;
  });
  if (state.saving->rank() == 0 && !fs::exists(folder)) {
    // A save that was cut short may have left it between two names.
    storage::remove_stale(fs::absolute(folder).parent_path());
  }
  state.saving->barrier();
  SavedAs saved;
  std::string failure;
  try {
    if (const auto deepspeeds = storage::deepspeed_checkpoint(folder)) {
      throw CheckpointError(*deepspeeds);  // Also of a run of Accelerate's.
    }
    const bool is_accelerates = is_accelerate_folder(folder);
    if (is_accelerates &&
        (options.models_only || !options.strict || !options.optimizers || !options.schedulers)) {
      throw ConfigError(
          "load_state",
          fmt::format(
              "{} was saved by Accelerate, and is loaded whole or not at all; leave the options "
              "out, or load its weights with load_checkpoint_in_model",
              folder.string()));
    }
    saved = is_accelerates ? check_import(folder, apply) : check_saved(folder, options, apply);
  } catch (const std::exception& error) {
    failure = without_rank_suffix(error.what());
    if (state.saves_on_each_host()) {
      failure = fmt::format("on host {}: {}", describe_machine().system.host, failure);
    }
  }
  throw_together(state.group, failure, folder, "cannot load it");
  expect_same_save(folder, saved);
  try {
    for (const auto& step : apply) {
      step();
    }
  } catch (const std::exception& error) {
    failure =
        without_rank_suffix(error.what());  // A custom object's, which nobody could ask before.
  }
  throw_together(state.group, failure, folder, "has loaded only a part of it");
}

}  // namespace lockstep
