// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/checkpointing/registered_objects.h"

#include <exception>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "lockstep/accelerator/training_state/non_finite_json.h"
#include "lockstep/base/error.h"
#include "lockstep/base/memory/crc32c.h"
#include "lockstep/comm/byte_collectives.h"
#include "lockstep/storage/state_files.h"

namespace lockstep {
namespace {

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

void RegisteredObjects::collect(
    checkpoint::Contents& contents, nlohmann::json& meta, const SavingGroups& groups) const {
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
  meta["custom_objects"] = nlohmann::json::array();
  Group group = groups.all;
  std::vector<nlohmann::json> all;
  for (const std::string& text : all_gather_bytes(
           group,
           nlohmann::json{{"registered", objects_.size()}, {"states", fingerprints}}.dump())) {
    all.push_back(nlohmann::json::parse(text));
  }
  expect_same_number(contents, all, objects_.size());
  namespace files = storage::state_files;
  for (size_t i = 0; i < own.size(); ++i) {
    bool differs = false;
    for (const nlohmann::json& item : all) {
      const nlohmann::json& states = item.at("states");
      differs = differs || i >= states.size() || states[i] != fingerprints[i];
    }
    meta["custom_objects"].push_back(differs ? "each" : "shared");
    if (!differs && !groups.leads()) {
      continue;
    }
    const std::string stem = differs ? files::object_of_rank(i, group.rank()) : files::object(i);
    contents.add_json(stem + ".json", own[i].values);
    if (!own[i].tensors.empty()) {
      contents.add_tensors(stem + ".safetensors", own[i].tensors);
    }
  }
}

}  // namespace lockstep
