// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/accelerator/checkpointing/parts/model_values.h"
#include "lockstep/accelerator/checkpointing/parts/parts.h"
#include "lockstep/base/error.h"
#include "lockstep/storage/safetensors/saved_values.h"
#include "lockstep/storage/state_files.h"

namespace lockstep::internal {
namespace {

namespace files = storage::state_files;

/// The position of a process in an accumulation group.
struct SavedAccumulation {
  int64_t step = 0;
  int64_t in_group = 0;
  int64_t num_steps = 1;
  bool within = false;
  std::optional<double> counted;
  nlohmann::json non_finite;  ///< Input of FiniteGuard.
  std::vector<bool> due;      ///< For each optimizer.
};

void check_non_finite(const storage::SavedValues& values) {
  if (!values.any("non_finite").is_null()) {
    const storage::SavedValues seen = values.object("non_finite");
    seen.flag("loss");
    seen.text("parameter");
  }
}

/// Throws CheckpointError, naming file and key, for invalid content.
SavedAccumulation read_saved_accumulation(
    const storage::StoredCheckpoint& stored, const std::string& file, size_t optimizers) {
  const nlohmann::json content = stored.json(file);
  const storage::SavedValues values(content, (stored.path() / file).string());
  SavedAccumulation saved{
      .step = values.count("step"),
      .in_group = values.count("in_group"),
      .num_steps = values.count("num_steps", 1),
      .within = values.flag("within"),
      .counted = std::nullopt,
      .non_finite = values.any("non_finite"),
      .due = {}};
  if (!values.any("counted").is_null()) {
    saved.counted = values.number("counted");
  }
  check_non_finite(values);
  for (const nlohmann::json& due : values.list("due", static_cast<int64_t>(optimizers))) {
    if (!due.is_boolean()) {
      values.refuse("due", "a list of true and false");
    }
    saved.due.push_back(due.get<bool>());
  }
  return saved;
}

/// Returns gradients by the names of their parameters.
NamedTensors gradients_of(const NamedTensors& parameters) {
  std::set<const void*> seen;
  NamedTensors gradients;
  for (const NamedTensor& item : parameters) {
    if (item.tensor.grad().defined() && seen.insert(item.tensor.unsafeGetTensorImpl()).second) {
      gradients.push_back({item.name, item.tensor.grad().detach()});
    }
  }
  return gradients;
}

/// Checks gradients of an unfinished accumulation group. Returns a function that restores them.
std::function<void()> check_gradients(
    const NamedTensors& parameters, const NamedTensors& saved, const std::string& path) {
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs;
  for (const NamedTensor& item : saved) {
    const auto owner = std::find_if(parameters.begin(), parameters.end(), [&](const auto& other) {
      return other.name == item.name && other.tensor.sizes() == item.tensor.sizes() &&
             other.tensor.scalar_type() == item.tensor.scalar_type();
    });
    if (owner == parameters.end()) {
      throw CheckpointError(
          path, "is a gradient that fits no parameter of this program", item.name);
    }
    pairs.emplace_back(
        owner->tensor,
        item.tensor.to(
            owner->tensor.device(),
            item.tensor.scalar_type(),
            /*non_blocking=*/false,
            /*copy=*/true));
  }
  return [pairs = std::move(pairs)] {
    for (const auto& [parameter, gradient] : pairs) {
      parameter.mutable_grad() = gradient;
    }
  };
}

/// Saves and loads the position in an accumulation group, and gradients that no update has used.
class AccumulationPart final : public CheckpointPart {
 public:
  AccumulationPart(PreparedObjects& objects, TrainingStep& step, FiniteGuard& finite)
      : objects_(objects), step_(step), finite_(finite) {}

  void collect(StateToSave& state) const override;
  bool is_loaded(const StateToLoad& state) const override { return state.loads_optimizers(); }
  void check(StateToLoad& state) const override;

 private:
  SavedAccumulation saved_by_rank(const StateToLoad& state, int rank) const {
    return read_saved_accumulation(
        state.reader, files::of_rank("accumulation", rank, ".json"), objects_.optimizers.size());
  }
  std::optional<double> counted_share(
      const StateToLoad& state, const SavedAccumulation& saved) const;
  void check_unused_gradients(StateToLoad& state, bool counted) const;

  PreparedObjects& objects_;
  TrainingStep& step_;
  FiniteGuard& finite_;
};

void AccumulationPart::collect(StateToSave& state) const {
  const AccumulationPosition& position = step_.position();
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
      state.contents.fail(
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
    state.contents.add_tensors(files::gradients(i, state.rank), gradients_of(parameters));
  }
  state.contents.add_json(
      files::of_rank("accumulation", state.rank, ".json"), std::move(accumulation));
}

/// Returns this process's share of the items that backward(loss_sum, count) has counted.
std::optional<double> AccumulationPart::counted_share(
    const StateToLoad& state, const SavedAccumulation& saved) const {
  std::optional<double> counted = saved.counted;
  if (counted && state.is_resharded()) {
    for (int rank = 1; rank < state.saved_by(); ++rank) {
      *counted += saved_by_rank(state, rank).counted.value_or(0);
    }
    *counted /= state.processes;
  }
  return counted;
}

/// Checks gradients that no update has used.
void AccumulationPart::check_unused_gradients(StateToLoad& state, bool counted) const {
  const std::vector<PreparedModel>& models = objects_.models;
  for (size_t i = 0; i < models.size(); ++i) {
    const auto file_of = [&](int rank) { return files::gradients(i, rank); };
    const std::string file = file_of(state.source());
    if (!state.reader.has(file)) {
      continue;
    }
    state.expect_same_mesh(file);
    NamedTensors gradients;
    if (state.is_resharded()) {
      // Equal shares of the same sum: of means over processes, or with counts of plain sums.
      gradients =
          sum_of(state.of_all_ranks(file_of), 1.0 / (counted ? state.processes : state.saved_by()));
    } else {
      gradients = state.reader.tensors(file);
    }
    state.apply.push_back(check_gradients(models[i].parameters(), gradients, state.path(file)));
  }
}

void AccumulationPart::check(StateToLoad& state) const {
  const SavedAccumulation saved = saved_by_rank(state, state.source());
  if (saved.within && saved.num_steps != step_.accumulation().num_steps) {
    throw CheckpointError(
        state.path(files::of_rank("accumulation", state.source(), ".json")),
        fmt::format(
            "was saved within a group of {} accumulation steps; this program has {}",
            saved.num_steps,
            step_.accumulation().num_steps));
  }
  const std::optional<double> counted = counted_share(state, saved);
  state.apply.emplace_back([this, saved, counted] {
    step_.load_position(
        {.sync_gradients = !saved.within,
         .step = saved.step,
         .in_group = saved.in_group,
         .counted = counted});
    finite_.load_state(saved.non_finite);
    for (size_t i = 0; i < objects_.optimizers.size(); ++i) {
      objects_.optimizers[i].set_gradients_due(saved.due[i]);
    }
  });
  check_unused_gradients(state, counted.has_value());
}

}  // namespace

std::unique_ptr<CheckpointPart> accumulation_part(
    PreparedObjects& objects, TrainingStep& step, FiniteGuard& finite) {
  return std::make_unique<AccumulationPart>(objects, step, finite);
}

}  // namespace lockstep::internal
