// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/training_state/saved_state.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/rank.h"
#include "lockstep/storage/safetensors/saved_values.h"

namespace lockstep {
namespace {

using nlohmann::json;
using storage::SavedValues;

void check_non_finite(const SavedValues& values) {
  if (!values.any("non_finite").is_null()) {
    const SavedValues seen = values.object("non_finite");
    seen.flag("loss");
    seen.text("parameter");
  }
}

}  // namespace

SavedAccumulation read_saved_accumulation(
    const storage::StoredCheckpoint& stored, const std::string& file, size_t optimizers) {
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
    const storage::StoredCheckpoint& stored, const std::string& file, size_t loaders) {
  const std::string path = (stored.path() / file).string();
  const json document{{"loaders", stored.json(file)}};
  const SavedValues saved(document, path);
  std::vector<SavedPosition> positions;
  for (const json& each : saved.list("loaders", static_cast<int64_t>(loaders))) {
    const SavedValues values(each, path, fmt::format("[{}]", positions.size()));
    try {
      positions.push_back(
          {.cursor = values.any("cursor").get<data::Cursor>(),
           .samples = values.count("samples"),
           .global_batch_rows = values.count("round_rows", 1),
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
