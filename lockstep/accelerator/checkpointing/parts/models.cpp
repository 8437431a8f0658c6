// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/accelerator/checkpointing/parts/model_values.h"
#include "lockstep/accelerator/checkpointing/parts/parts.h"
#include "lockstep/accelerator/prepare/divided_state.h"
#include "lockstep/accelerator/training_state/sharded_state.h"
#include "lockstep/base/error.h"
#include "lockstep/flat/copy_values.h"
#include "lockstep/storage/state_files.h"

namespace lockstep::internal {
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

/// Saves and loads parameters and buffers of all models; see also own_buffers.cpp.
class ModelsPart final : public CheckpointPart {
 public:
  explicit ModelsPart(const PreparedObjects& objects) : objects_(objects) {}

  void collect(StateToSave& state) const override;
  bool is_loaded(const StateToLoad& /*state*/) const override { return true; }
  void check(StateToLoad& state) const override;

 private:
  ModelShards shards_of(const StateToLoad& state, size_t index, bool in_parts) const;
  void check_model_at(StateToLoad& state, size_t index) const;

  const PreparedObjects& objects_;
};

void ModelsPart::collect(StateToSave& state) const {
  const SaveDisk disk{
      .on_each_host = state.groups.on_each_host(), .is_writer = state.groups.is_writer()};
  std::vector<std::vector<std::string>> left_out(objects_.models.size());
  for (size_t i = 0; i < objects_.models.size(); ++i) {
    if (state.excluded_models.contains(i)) {
      continue;
    }
    const PreparedModel& model = objects_.models[i];
    NamedTensors tensors = without_ties(model.parameters(), model.buffers());
    if (state.options.exclude_frozen_parameters) {
      left_out[i] = names_of_all_parts(objects_, remove_frozen(model.parameters(), tensors));
    }
    const bool is_sharded =
        objects_.shards_parameters() || (objects_.sharding && objects_.sharding->has_masters());
    if (is_sharded) {
      objects_.sharding->write_back();
    }
    const comm::MeshGroups& mesh = objects_.context.mesh;
    if (is_sharded && (mesh.model.size() > 1 || mesh.experts.size() > 1)) {
      NamedTensors full = full_sharded_model_tensors(objects_, tensors, disk.is_writer);
      if (disk.is_writer) {
        state.contents.add_tensors(files::model(i), std::move(full), {{"format", "pt"}});
      }
      continue;
    }
    if (is_sharded && !objects_.saves_full_state_dict()) {
      add_sharded_model(
          state.contents, files::numbered("model", i), tensors, *objects_.sharding, disk);
      continue;
    }
    if (!is_sharded) {
      state.shares.claim(0, full_bytes(objects_, tensors));
      tensors = full_model_tensors(objects_, tensors, disk.is_writer);
    }
    if (disk.is_writer) {
      checkpoint::Contents& contents = is_sharded ? state.full_tensors : state.contents;
      contents.add_tensors(files::model(i), std::move(tensors), {{"format", "pt"}});
    }
  }
  state.meta["models"] = objects_.models.size();
  if (state.options.exclude_frozen_parameters) {
    state.meta["left_out"] = left_out;
  }
}

/// Returns a model's tensors and their saved values, as this rank has them.
ModelShards ModelsPart::shards_of(const StateToLoad& state, size_t index, bool in_parts) const {
  const PreparedModel& model = objects_.models[index];
  const std::string stem = files::numbered("model", index);
  NamedTensors current = without_ties(model.parameters(), model.buffers());
  const std::set<std::string>& left_out = state.saved.left_out[index];
  std::erase_if(current, [&](const NamedTensor& item) {
    return left_out.contains(item.name);  // The program keeps its value.
  });
  NamedTensors saved;
  if (!in_parts) {
    saved = own_model_tensors(objects_, current, state.tensor_set(stem));
  }
  if (!objects_.sharding) {
    return {.current = std::move(current), .saved = std::move(saved)};
  }
  const bool from_fp32_weights = objects_.context.options.zero->load_from_fp32_weights;
  return in_parts
             ? own_model_part(state.reader, stem, current, *objects_.sharding, from_fp32_weights)
             : own_model_shards(current, std::move(saved), *objects_.sharding, from_fp32_weights);
}

void ModelsPart::check_model_at(StateToLoad& state, size_t index) const {
  const std::string stem = files::numbered("model", index);
  const bool in_parts = is_in_parts(state.reader, stem);
  const std::shared_ptr<zero::Sharding>& sharding = objects_.sharding;
  ModelShards shards = shards_of(state, index, in_parts);
  if (sharding) {
    state.apply.emplace_back([sharding] { sharding->finish_parameter_use(); });
  }
  state.apply.push_back(check_model(
      shards.current, std::move(shards.saved), state.set_path(stem), state.options.strict));
  if (sharding) {
    state.apply.emplace_back([sharding, quantized = std::move(shards.quantized)] {
      sharding->store_quantized(quantized);
    });
  }
  if (in_parts) {
    state.apply.emplace_back([sharding] { sharding->gather_parameters(); });
  }
  state.apply.emplace_back([full = std::move(shards.full_parameters)] {
    for (const auto& [parameter, value] : full) {
      flat::copy_values(parameter, value);  // The masters' values, rounded.
    }
  });
}

void ModelsPart::check(StateToLoad& state) const {
  const size_t models = objects_.models.size();
  state.must_match("models", state.saved.models, models);
  for (size_t i = 0; i < models; ++i) {
    if (state.excluded_models.contains(i)) {
      continue;
    }
    if (state.saved.excluded_models.contains(i)) {
      throw CheckpointError(
          state.reader.path().string(),
          fmt::format(
              "model {} was saved by a save_state hook of the program; register the load_state "
              "hook that reads it",
              i));
    }
    check_model_at(state, i);
  }
}

}  // namespace

std::unique_ptr<CheckpointPart> models_part(const PreparedObjects& objects) {
  return std::make_unique<ModelsPart>(objects);
}

}  // namespace lockstep::internal
