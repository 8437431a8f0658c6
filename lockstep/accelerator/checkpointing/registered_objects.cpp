// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/checkpointing/registered_objects.h"

#include <exception>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/accelerator/training_state/non_finite_json.h"
#include "lockstep/base/error.h"
#include "lockstep/base/memory/crc32c.h"
#include "lockstep/comm/byte_collectives.h"
#include "lockstep/storage/state_files.h"

namespace lockstep::internal {
namespace {

namespace files = storage::state_files;

/// Returns a checksum of a state, to compare the states of processes.
std::string fingerprint(const ObjectState& state) {
  uint32_t crc = crc32c(state.values.dump());
  for (const NamedTensor& item : state.tensors) {
    const at::Tensor plain = item.tensor.detach().to(at::kCPU).contiguous();
    crc = crc32c(crc, item.name.data(), item.name.size());
    crc = crc32c(crc, plain.const_data_ptr(), plain.nbytes());
  }
  return fmt::format("{:08x}", crc);
}

/// Fails the save unless all processes have registered the same number of objects.
void expect_same_number(
    checkpoint::Contents& contents, const std::vector<nlohmann::json>& all, size_t registered) {
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const auto others = all[rank].at("registered").get<size_t>();
    if (others != registered) {
      contents.fail(fmt::format(
          "rank {} registered {} objects for checkpointing, this rank {}; register the same "
          "objects on all ranks",
          rank,
          others,
          registered));
    }
  }
}

}  // namespace

void RegisteredObjects::add(AnyCheckpointable object) {
  for (const AnyCheckpointable& known : objects_) {
    if (known.id == object.id) {
      throw ConfigError(
          "register_for_checkpointing",
          "the object is already registered; register each object once");
    }
  }
  objects_.push_back(std::move(object));
}

void RegisteredObjects::collect(StateToSave& state) const {
  checkpoint::Contents& contents = state.contents;
  std::vector<ObjectState> own;
  nlohmann::json fingerprints = nlohmann::json::array();
  try {
    for (const AnyCheckpointable& object : objects_) {
      own.push_back(object.state_dict());
      own.back().values = without_non_finite(own.back().values);
      fingerprints.push_back(fingerprint(own.back()));
    }
  } catch (const std::exception& error) {
    contents.fail(fmt::format("the state of custom object {}: {}", own.size(), error.what()));
  }
  state.meta["custom_objects"] = nlohmann::json::array();
  Group group = state.groups.all;
  std::vector<nlohmann::json> all;
  for (const std::string& text : all_gather_bytes(
           group,
           nlohmann::json{{"registered", objects_.size()}, {"states", fingerprints}}.dump())) {
    all.push_back(nlohmann::json::parse(text));
  }
  expect_same_number(contents, all, objects_.size());
  for (size_t i = 0; i < own.size(); ++i) {
    bool differs = false;
    for (const nlohmann::json& item : all) {
      const nlohmann::json& states = item.at("states");
      differs = differs || i >= states.size() || states[i] != fingerprints[i];
    }
    state.meta["custom_objects"].push_back(differs ? "each" : "shared");
    if (!differs && !state.groups.is_writer()) {
      continue;
    }
    const std::string stem = differs ? files::object_of_rank(i, group.rank()) : files::object(i);
    contents.add_json(stem + ".json", own[i].values);
    if (!own[i].tensors.empty()) {
      contents.add_tensors(stem + ".safetensors", own[i].tensors);
    }
  }
}

void RegisteredObjects::check(StateToLoad& state) const {
  const std::vector<bool>& differ = state.saved.objects_differ;
  if (differ.size() != objects_.size()) {
    throw CheckpointError(
        state.reader.path().string(),
        fmt::format(
            "holds {} custom objects, this program registered {} for checkpointing",
            differ.size(),
            objects_.size()));
  }
  for (size_t i = 0; i < objects_.size(); ++i) {
    const bool each = differ[i];
    if (each && state.is_resharded()) {
      throw CheckpointError(
          state.reader.path().string(),
          fmt::format(
              "custom object {} has a different state for each of {} processes, but this job has "
              "{}; start {} processes, or register objects with the same state in all processes",
              i,
              state.saved_by(),
              state.processes,
              state.saved_by()));
    }
    const std::string stem = each ? files::object_of_rank(i, state.rank) : files::object(i);
    ObjectState saved(with_non_finite(state.reader.json(stem + ".json")));
    if (state.reader.has(stem + ".safetensors")) {
      saved.tensors = state.reader.tensors(stem + ".safetensors");
    }
    state.apply.emplace_back(
        [object = objects_[i], saved = std::move(saved)] { object.load_state_dict(saved); });
  }
}

void ProgramHooks::collect(StateToSave& state) const {
  StateBeingSaved being_saved{.contents = state.contents, .models = objects_.models.size()};
  save_hooks_.run(being_saved);
  state.excluded_models = being_saved.excluded_models;
  state.contents.must_agree(
      "the models that a hook saves", fmt::format("{}", fmt::join(state.excluded_models, ", ")));
  state.meta["models_taken_over"] = state.excluded_models;
}

void ProgramHooks::check(StateToLoad& state) const {
  StateBeingLoaded being_loaded{.checkpoint = state.reader, .models = objects_.models.size()};
  load_hooks_.run(being_loaded);
  state.excluded_models = being_loaded.excluded_models;
}

}  // namespace lockstep::internal
