// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/training_state/saved_optimizer.h"

#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/accelerator/training_state/non_finite_json.h"
#include "lockstep/base/error.h"

namespace lockstep::internal {
namespace {

constexpr const char* kOwnType = "custom";

}  // namespace

void add_own_optimizer(
    checkpoint::Contents& contents, const std::string& stem, const AnyCheckpointable& optimizer) {
  ObjectState state = optimizer.state_dict();
  contents.add_tensors(stem + ".safetensors", std::move(state.tensors));
  contents.add_json(
      stem + ".json", {{"type", kOwnType}, {"state", without_non_finite(state.values)}});
}

std::function<void()> check_own_optimizer(
    const AnyCheckpointable& optimizer, const checkpoint::Reader& reader, const std::string& stem) {
  const nlohmann::json settings = reader.json(stem + ".json");
  const nlohmann::json type =
      settings.is_object() ? settings.value("type", nlohmann::json()) : nlohmann::json();
  if (type != kOwnType || !settings.contains("state")) {
    throw CheckpointError(
        (reader.path() / (stem + ".json")).string(),
        fmt::format(
            "holds the state of {}; this program's optimizer has its own state_dict(), and expects "
            "a state that it saved",
            type.dump()));
  }
  ObjectState saved(with_non_finite(settings.at("state")), reader.tensors(stem + ".safetensors"));
  return [optimizer, saved = std::move(saved)] { optimizer.load_state_dict(saved); };
}

void expect_readable_state(
    torch::optim::Optimizer& optimizer, const std::string& where, const std::string& need) {
  if (!is_known_optimizer(optimizer)) {
    throw ConfigError(
        where,
        fmt::format(
            "the state of this optimizer cannot be read, and is needed: {}; use one of "
            "lockstep::optim or torch::optim's SGD, Adam, AdamW, Adagrad or RMSprop, or give your "
            "class state_dict() and load_state_dict() (see checkpointable.h) and pass it to "
            "prepare() with its own type",
            need));
  }
}

}  // namespace lockstep::internal
