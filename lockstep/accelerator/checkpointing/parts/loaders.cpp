// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/accelerator/checkpointing/parts/parts.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/rank.h"
#include "lockstep/data/order/cursor.h"
#include "lockstep/storage/safetensors/saved_values.h"
#include "lockstep/storage/state_files.h"

namespace lockstep::internal {
namespace {

namespace files = storage::state_files;

/// The position of a process's loader.
struct SavedPosition {
  data::Cursor cursor;
  int64_t samples = 0;
  int64_t global_batch_rows = 1;
  std::string path;  ///< The file, for messages.
};

/// Throws CheckpointError, naming file and key, for invalid content.
std::vector<SavedPosition> read_saved_positions(
    const storage::StoredCheckpoint& stored, const std::string& file, size_t loaders) {
  const std::string path = (stored.path() / file).string();
  const nlohmann::json document{{"loaders", stored.json(file)}};
  const storage::SavedValues saved(document, path);
  std::vector<SavedPosition> positions;
  for (const nlohmann::json& each : saved.list("loaders", static_cast<int64_t>(loaders))) {
    const storage::SavedValues values(each, path, fmt::format("[{}]", positions.size()));
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

/// Checks a loader's position, which is only valid for the same data. With another global batch
/// size the loader continues after the same samples.
std::function<void()> check_loader(
    const std::shared_ptr<data::LoaderCore>& loader, const SavedPosition& saved) {
  loader->check_rows(saved.global_batch_rows);
  if (saved.samples != loader->layout().samples()) {
    throw CheckpointError(
        saved.path,
        fmt::format(
            "was saved with {} samples, this loader has {}; give it the same data",
            saved.samples,
            loader->layout().samples()));
  }
  const data::Cursor cursor = loader->resharded(saved.cursor, saved.global_batch_rows);
  loader->check_cursor(cursor);
  return [loader, cursor] { loader->load_cursor(cursor); };
}

/// Saves and loads the positions of loaders.
class LoadersPart final : public CheckpointPart {
 public:
  LoadersPart(
      const PreparedObjects& objects, const ActiveLoaders& active, const EpochCounter& epochs)
      : objects_(objects), active_(active), epochs_(epochs) {}

  void collect(StateToSave& state) const override;
  void check(StateToLoad& state) const override;

 private:
  data::Cursor position_of(const data::LoaderCore& loader) const;
  void begin_loaders(StateToLoad& state) const;

  const PreparedObjects& objects_;
  const ActiveLoaders& active_;
  const EpochCounter& epochs_;
};

/// Returns where a loader continues. With epochs() a program resumes within the body of its last
/// batch's iteration, so that pass has no more batches. A program that counts its epochs itself
/// begins with the next pass, for instance with `updates / updates_per_epoch`.
data::Cursor LoadersPart::position_of(const data::LoaderCore& loader) const {
  const data::Cursor cursor = active_.position_to_save(loader);
  if (epochs_.place().empty() && active_.is_at_last_batch(loader)) {
    return {.seed = cursor.seed, .epoch = cursor.epoch + 1};
  }
  return cursor;
}

void LoadersPart::collect(StateToSave& state) const {
  state.meta["loaders"] = objects_.loaders.size();
  nlohmann::json cursors = nlohmann::json::array();
  for (const auto& loader : objects_.loaders) {
    cursors.push_back(
        {{"cursor", position_of(*loader)},
         {"samples", loader->layout().samples()},
         {"round_rows", loader->layout().global_batch_rows()}});
  }
  state.contents.add_json(files::of_rank("loaders", state.rank, ".json"), std::move(cursors));
}

/// Puts all loaders at the beginning of their first epoch.
void LoadersPart::begin_loaders(StateToLoad& state) const {
  log_warning(fmt::format(
      "{} has no position of a loader, so the loaders begin with their first batch",
      state.reader.path().string()));
  for (const auto& loader : objects_.loaders) {
    state.apply.emplace_back([loader] { loader->load_cursor({.seed = loader->cursor().seed}); });
  }
}

void LoadersPart::check(StateToLoad& state) const {
  const auto& loaders = objects_.loaders;
  if (state.options.may_lack_positions && state.saved.loaders == 0 && !loaders.empty()) {
    begin_loaders(state);
    return;
  }
  state.must_match("loaders", state.saved.loaders, loaders.size());
  const auto positions_of = [&](int rank) {
    const std::string file = files::of_rank("loaders", rank, ".json");
    return read_saved_positions(state.reader, file, loaders.size());
  };
  const auto own = positions_of(state.source());
  for (size_t i = 0; i < loaders.size(); ++i) {
    // Rank 0 has the most batches of all ranks, so its position counts for all.
    const bool other_rounds = own[i].global_batch_rows != loaders[i]->layout().global_batch_rows();
    state.apply.push_back(check_loader(loaders[i], other_rounds ? positions_of(0)[i] : own[i]));
  }
}

}  // namespace

std::unique_ptr<CheckpointPart> loaders_part(
    const PreparedObjects& objects, const ActiveLoaders& active, const EpochCounter& epochs) {
  return std::make_unique<LoadersPart>(objects, active, epochs);
}

}  // namespace lockstep::internal
