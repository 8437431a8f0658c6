// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/accelerator/checkpointing/loading.h"
#include "lockstep/accelerator/training_state/sharded_state.h"
#include "lockstep/accelerator/training_state/training_state.h"
#include "lockstep/base/error.h"
#include "lockstep/flat/copy_values.h"
#include "lockstep/storage/safetensors/saved_values.h"
#include "lockstep/storage/state_files.h"

namespace lockstep {
namespace {

namespace files = storage::state_files;

/// Returns a model's tensors and their saved values, as this rank has them.
ModelShards model_shards(const Loading& loading, size_t index, bool in_parts) {
  const PreparedObjects& objects = loading.targets.objects;
  const PreparedModel& model = objects.models[index];
  const std::string stem = files::numbered("model", index);
  NamedTensors current = without_ties(model.parameters(), model.buffers());
  const std::set<std::string>& left_out = loading.saved.left_out[index];
  std::erase_if(current, [&](const NamedTensor& item) {
    return left_out.contains(item.name);  // The program keeps its value.
  });
  NamedTensors saved;
  if (!in_parts) {
    saved = loading.tensor_set(stem);
  }
  if (!objects.sharding) {
    return {.current = std::move(current), .saved = std::move(saved)};
  }
  const bool from_fp32_weights = objects.context.options.zero->load_from_fp32_weights;
  return in_parts
             ? own_model_part(loading.reader, stem, current, *objects.sharding, from_fp32_weights)
             : own_model_shards(current, std::move(saved), *objects.sharding, from_fp32_weights);
}

void check_model_at(Loading& loading, size_t index) {
  const std::string stem = files::numbered("model", index);
  const bool in_parts = is_in_parts(loading.reader, stem);
  const std::shared_ptr<zero::Sharding>& sharding = loading.targets.objects.sharding;
  ModelShards shards = model_shards(loading, index, in_parts);
  if (sharding) {
    loading.apply.emplace_back([sharding] { sharding->finish_parameter_use(); });
  }
  loading.apply.push_back(check_model(
      shards.current, std::move(shards.saved), loading.set_path(stem), loading.options.strict));
  if (sharding) {
    loading.apply.emplace_back([sharding, quantized = std::move(shards.quantized)] {
      sharding->store_quantized(quantized);
    });
  }
  if (in_parts) {
    loading.apply.emplace_back([sharding] { sharding->gather_parameters(); });
  }
  loading.apply.emplace_back([full = std::move(shards.full_parameters)] {
    for (const auto& [parameter, value] : full) {
      flat::copy_values(parameter, value);  // The masters' values, rounded.
    }
  });
}

/// Checks each process's own buffers, which were saved if buffers do not follow rank 0's.
void check_own_buffers(Loading& loading, size_t model) {
  const PreparedObjects& objects = loading.targets.objects;
  const auto file_of = [&](int rank) {
    return files::of_rank(files::numbered("buffers", model), rank, ".safetensors");
  };
  const NamedTensors buffers = without_ties(objects.models[model].buffers(), {});
  if (objects.context.options.data_parallel.broadcast_buffers || buffers.empty()) {
    return;
  }
  const std::string file = file_of(loading.rank());
  if (!loading.resharded) {
    if (loading.reader.has(file)) {
      loading.apply.push_back(
          check_model(buffers, loading.reader.tensors(file), loading.path(file)));
    }
    return;
  }
  std::vector<NamedTensors> all(1);
  for (NamedTensor& item : loading.tensor_set(files::numbered("model", model))) {
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

}  // namespace

void check_models(Loading& loading) {
  const size_t models = loading.targets.objects.models.size();
  StateBeingLoaded being_loaded{.checkpoint = loading.reader, .models = models};
  loading.targets.registered.load_hooks().run(being_loaded);
  loading.must_match("models", loading.saved.models, models);
  for (size_t i = 0; i < models; ++i) {
    if (being_loaded.taken_over.contains(i)) {
      continue;
    }
    if (loading.saved.models_taken_over.contains(i)) {
      throw CheckpointError(
          loading.reader.path().string(),
          fmt::format(
              "model {} was saved by a save_state hook of the program; register the load_state "
              "hook that reads it",
              i));
    }
    check_model_at(loading, i);
    check_own_buffers(loading, i);
  }
}

void check_comm_hooks(Loading& loading) {
  const std::vector<PreparedModel>& models = loading.targets.objects.models;
  for (size_t i = 0; i < models.size(); ++i) {
    const std::shared_ptr<DataParallel>& parallel = models[i].parallel;
    const std::string stem = files::numbered("comm_hook", i);
    const auto tensors_of = [&](int rank) { return files::of_rank(stem, rank, ".safetensors"); };
    const int source = loading.source();
    if (!loading.reader.has(tensors_of(source))) {
      // Saved before anything was compressed: errors that are fed back here are of another run.
      loading.apply.emplace_back([parallel] {
        if (parallel->hook_state().iteration > 0) {
          parallel->load_hook_state({});
        }
      });
      continue;
    }
    const std::string counter = files::of_rank(stem, source, ".json");
    const nlohmann::json counted = loading.reader.json(counter);
    // With other ranks, each gets the mean of what the former ranks have still to send.
    CommHookState hook{
        .iteration = storage::SavedValues(counted, loading.path(counter)).count("iteration"),
        .tensors = loading.resharded ? mean_of(loading.of_all_ranks(tensors_of))
                                     : loading.reader.tensors(tensors_of(source))};
    parallel->check_hook_state(hook);
    loading.apply.emplace_back(
        [parallel, hook = std::move(hook)] { parallel->load_hook_state(hook); });
  }
}

}  // namespace lockstep
