// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/saved_state.h"

#include <limits>

#include <fmt/format.h>

#include "lockstep/accelerator/saved_values.h"
#include "lockstep/base/error.h"
#include "lockstep/base/rank.h"

namespace lockstep {
namespace {

using nlohmann::json;

std::set<size_t> read_taken_over(const SavedValues& meta, size_t models) {
  std::set<size_t> taken_over;
  if (models == 0) {
    meta.list("models_taken_over", 0);
    return taken_over;
  }
  for (const int64_t model : meta.counts("models_taken_over", static_cast<int64_t>(models) - 1)) {
    taken_over.insert(static_cast<size_t>(model));
  }
  return taken_over;
}

/// Only where something was left out does a manifest say so.
std::vector<std::set<std::string>> read_left_out(const SavedValues& meta, size_t models) {
  std::vector<std::set<std::string>> left_out(models);
  if (!meta.has("left_out")) {
    return left_out;
  }
  const json& all = meta.list("left_out", static_cast<int64_t>(models));
  for (size_t i = 0; i < models; ++i) {
    if (!all[i].is_array()) {
      meta.refuse("left_out", "a list of names for each model");
    }
    for (const json& name : all[i]) {
      if (!name.is_string()) {
        meta.refuse("left_out", "a list of names for each model");
      }
      left_out[i].insert(name.get<std::string>());
    }
  }
  return left_out;
}

std::vector<bool> read_objects(const SavedValues& meta) {
  std::vector<bool> differ;
  for (const json& kind : meta.list("custom_objects")) {
    if (kind != "each" && kind != "shared") {
      meta.refuse("custom_objects", "a list of \"each\" and \"shared\"");
    }
    differ.push_back(kind == "each");
  }
  return differ;
}

void check_non_finite(const SavedValues& values) {
  if (!values.any("non_finite").is_null()) {
    const SavedValues seen = values.object("non_finite");
    seen.flag("loss");
    seen.text("parameter");
  }
}

}  // namespace

SavedMeta read_saved_meta(const checkpoint::StoredCheckpoint& stored) {
  const SavedValues meta(
      stored.meta(), (stored.path() / checkpoint::kManifestName).string(), "meta");
  SavedMeta saved;
  saved.processes = static_cast<int>(
      meta.count("processes", stored.world_size(), std::numeric_limits<int>::max()));
  saved.models = static_cast<size_t>(meta.count("models"));
  saved.models_taken_over = read_taken_over(meta, saved.models);
  saved.left_out = read_left_out(meta, saved.models);
  saved.loaders = static_cast<size_t>(meta.count("loaders"));
  saved.optimizer_steps = meta.counts("optimizer_steps");
  const json& schedulers = meta.list("schedulers");
  saved.schedulers.assign(schedulers.begin(), schedulers.end());
  if (meta.has("scaler")) {
    saved.scaler = meta.any("scaler");
  }
  saved.objects_differ = read_objects(meta);
  if (meta.has("local_sgd_steps")) {
    saved.local_sgd_steps = meta.counts("local_sgd_steps");
  }
  if (meta.has(checkpoint::kSaveIdKey)) {
    saved.save_id = meta.text(checkpoint::kSaveIdKey);
  }
  return saved;
}

SavedAccumulation read_saved_accumulation(
    const checkpoint::StoredCheckpoint& stored, const std::string& file, size_t optimizers) {
  const json content = stored.json(file);
  const SavedValues values(content, (stored.path() / file).string());
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
  for (const json& due : values.list("due", static_cast<int64_t>(optimizers))) {
    if (!due.is_boolean()) {
      values.refuse("due", "a list of true and false");
    }
    saved.due.push_back(due.get<bool>());
  }
  return saved;
}

std::vector<SavedPosition> read_saved_positions(
    const checkpoint::StoredCheckpoint& stored, const std::string& file, size_t loaders) {
  const std::string path = (stored.path() / file).string();
  const json whole{{"loaders", stored.json(file)}};
  std::vector<SavedPosition> positions;
  for (const json& each : SavedValues(whole, path).list("loaders", static_cast<int64_t>(loaders))) {
    const SavedValues values(each, path, fmt::format("[{}]", positions.size()));
    try {
      positions.push_back(
          {.cursor = values.any("cursor").get<data::Cursor>(),
           .samples = values.count("samples"),
           .round_rows = values.count("round_rows", 1),
           .path = path});
    } catch (const ConfigError& error) {
      throw CheckpointError(
          path,
          fmt::format(
              "holds no position of a loader in {}; {}",
              values.place_of("cursor"),
              without_rank_suffix(error.what())));
    }
  }
  return positions;
}

}  // namespace lockstep
