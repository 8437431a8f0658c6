// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/saved_meta.h"

#include <limits>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/storage/manifest.h"
#include "lockstep/storage/safetensors/saved_values.h"

namespace lockstep::storage {
namespace {

using Json = nlohmann::json;

/// A limit, since memory for all models is allocated before the first is read.
constexpr int64_t kMostModels = 1 << 16;

std::set<size_t> read_excluded_models(const SavedValues& meta, size_t models) {
  std::set<size_t> excluded;
  if (models == 0) {
    meta.list("models_taken_over", 0);
    return excluded;
  }
  for (const int64_t model : meta.counts("models_taken_over", static_cast<int64_t>(models) - 1)) {
    excluded.insert(static_cast<size_t>(model));
  }
  return excluded;
}

/// Reads left_out, which a manifest has only if parameters were omitted.
std::vector<std::set<std::string>> read_left_out(const SavedValues& meta, size_t models) {
  std::vector<std::set<std::string>> left_out(models);
  if (!meta.has("left_out")) {
    return left_out;
  }
  const Json& all = meta.list("left_out", static_cast<int64_t>(models));
  for (size_t i = 0; i < models; ++i) {
    if (!all[i].is_array()) {
      meta.refuse("left_out", "a list of names for each model");
    }
    for (const Json& name : all[i]) {
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
  for (const Json& kind : meta.list("custom_objects")) {
    if (kind != "each" && kind != "shared") {
      meta.refuse("custom_objects", "a list of \"each\" and \"shared\"");
    }
    differ.push_back(kind == "each");
  }
  return differ;
}

}  // namespace

SavedMeta read_saved_meta(const StoredCheckpoint& stored) {
  const SavedValues meta(stored.meta(), (stored.path() / kManifestName).string(), "meta");
  SavedMeta saved;
  saved.processes = static_cast<int>(
      meta.count("processes", stored.world_size(), std::numeric_limits<int>::max()));
  if (meta.has("mesh")) {
    saved.mesh = meta.text("mesh");
  }
  saved.models = static_cast<size_t>(meta.count("models", 0, kMostModels));
  saved.excluded_models = read_excluded_models(meta, saved.models);
  saved.left_out = read_left_out(meta, saved.models);
  saved.loaders = static_cast<size_t>(meta.count("loaders"));
  saved.optimizer_steps = meta.counts("optimizer_steps");
  saved.step = meta.has("step") ? meta.count("step") : 0;
  const Json& schedulers = meta.list("schedulers");
  saved.schedulers.assign(schedulers.begin(), schedulers.end());
  if (meta.has("scaler")) {
    saved.scaler = meta.any("scaler");
  }
  saved.objects_differ = read_objects(meta);
  if (meta.has("local_sgd_steps")) {
    saved.local_sgd_steps = meta.counts("local_sgd_steps");
  }
  if (meta.has("epoch_ranges")) {
    saved.epoch_ranges = meta.counts("epoch_ranges");
    saved.epochs_done = meta.counts("epochs_done");
    if (saved.epochs_done.size() != saved.epoch_ranges.size()) {
      meta.refuse("epochs_done", "as many numbers as epoch_ranges has");
    }
  }
  if (meta.has(kSaveIdKey)) {
    saved.save_id = meta.text(kSaveIdKey);
  }
  return saved;
}

bool is_saved_state(const Json& meta) {
  // Another program's meta may have one of these keys, too.
  int known = 0;
  for (const char* key : {kSaveIdKey, "processes", "models", "optimizer_steps"}) {
    known += meta.contains(key) ? 1 : 0;
  }
  return known >= 3;
}

}  // namespace lockstep::storage
