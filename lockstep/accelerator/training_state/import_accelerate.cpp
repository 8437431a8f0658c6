// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/training_state/import_accelerate.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text/shell.h"
#include "lockstep/checkpoint/weights/safetensors.h"
#include "lockstep/storage/file/files.h"
#include "lockstep/storage/manifest.h"
#include "lockstep/storage/model_files.h"
#include "lockstep/storage/safetensors/json_text.h"
#include "lockstep/storage/safetensors/safetensors_map.h"
#include "lockstep/storage/state_files.h"

namespace lockstep::internal {
namespace {

namespace fs = std::filesystem;
namespace files = storage::state_files;
using nlohmann::json;
using storage::in_quotes;

constexpr uint64_t kMaxJsonBytes = 100'000'000;

/// Options of torch's optimizers that change no number, or that the optimizer's type implies.
constexpr std::array kDropped = {
    "params",
    "param_names",
    "initial_lr",
    "foreach",
    "fused",
    "capturable",
    "differentiable",
    "decoupled_weight_decay"};

/// Converts all of a folder's optimizers and schedulers. The folder is an argument, not part of the
/// program, so that it needs no quoting for Python; weights_only, so that converting runs no code
/// of the files' either.
constexpr std::string_view kConversion =
    R"(python -c 'import glob, json, sys, torch; from safetensors.torch import save_file; )"
    R"(load = lambda p: torch.load(p, map_location="cpu", weights_only=True); )"
    R"(text = lambda x: json.dumps(x, default=lambda t: t.tolist()); )"
    R"(safe = lambda x: text(x).replace("-Infinity", "\"-inf\"").replace("Infinity", "\"inf\""); )"
    R"(dump = lambda p, x: open(p[:-4] + ".json", "w").write(safe(x)); )"
    R"(find = lambda n: glob.glob(glob.escape(sys.argv[1]) + n); )"
    R"([(s := load(p), save_file({f"{i}.{k}": torch.as_tensor(v).contiguous().clone() )"
    R"(for i, f in s["state"].items() for k, v in f.items() if v is not None}, )"
    R"(p[:-4] + ".safetensors"), dump(p, {"param_groups": s["param_groups"]})) )"
    R"(for p in find("/optimizer*.bin")]; [dump(p, load(p)) for p in find("/scheduler*.bin")]' )";

std::string conversion(const fs::path& folder) {
  return std::string(kConversion) + shell_quoted({folder.native()});
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename());
  }
  if (error) {
    throw CheckpointError(folder.string(), "cannot be listed; " + error.message());
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// The two names of an object's file: Accelerate's pickle, and the file that Lockstep can read.
struct FileNames {
  std::string pickle;
  std::string readable;
};

FileNames model_names(size_t index) {
  return {files::numbered("pytorch_model", index) + ".bin", files::model(index)};
}
FileNames optimizer_names(size_t index) {
  return {files::optimizer(index) + ".bin", files::optimizer(index) + ".safetensors"};
}
FileNames scheduler_names(size_t index) {
  const std::string stem = files::numbered("scheduler", index);
  return {stem + ".bin", stem + ".json"};
}

/// Throws CheckpointError unless the folder has `expected` objects of this kind.
void check_count(
    const fs::path& folder, const char* what, FileNames (*names_of)(size_t), size_t expected) {
  const auto is_there = [&](size_t index) {
    const FileNames names = names_of(index);
    return storage::name_exists(folder / names.pickle) ||
           storage::name_exists(folder / names.readable);
  };
  size_t found = 0;
  while (is_there(found)) {
    ++found;
  }
  if (found != expected) {
    throw CheckpointError(
        folder.string(),
        fmt::format("holds {} {}, this program prepared {}", found, what, expected));
  }
}

/// Returns `path`. Throws CheckpointError with the command that creates it if it does not exist.
fs::path converted(const fs::path& path) {
  if (!storage::name_exists(path)) {
    throw CheckpointError(
        fs::path(path).replace_extension(".bin").string(),
        fmt::format(
            "is a pickle, which is never read because reading one runs code in it; to convert the "
            "folder's optimizers and schedulers, run: {}",
            conversion(path.parent_path())));
  }
  return path;
}

json read_object(const fs::path& path) {
  json value = storage::parse_json(path.string(), storage::read_file(path, kMaxJsonBytes));
  if (!value.is_object()) {
    throw CheckpointError(path.string(), "is not a state of Accelerate; expected a JSON object");
  }
  return value;
}

/// Returns the names of the parameters that Python's optimizer numbers 0, 1, ... through its
/// groups.
std::vector<std::string> counted_names(
    const std::string& path,
    const json& groups,
    const std::vector<std::vector<std::string>>& parameters) {
  if (!groups.is_array() || groups.size() != parameters.size()) {
    throw CheckpointError(
        path,
        fmt::format(
            "holds {} parameter groups; this program's optimizer has {}",
            groups.size(),
            parameters.size()));
  }
  std::vector<std::string> names;
  std::vector<std::string> given;  // The names that Python's optimizer stored, if any.
  for (size_t i = 0; i < groups.size(); ++i) {
    const json params = groups[i].is_object() ? groups[i].value("params", json()) : json();
    if (!params.is_array() || params.size() != parameters[i].size()) {
      throw CheckpointError(
          path,
          fmt::format(
              "holds {} parameters in group {}; this program's optimizer has {} there",
              params.size(),
              i,
              parameters[i].size()));
    }
    for (size_t k = 0; k < params.size(); ++k) {
      if (params[k] != names.size()) {
        throw CheckpointError(
            path,
            fmt::format(
                "numbers its parameters in an unknown order: {}; expected 0, 1, 2, ... through the "
                "groups",
                params.dump()));
      }
      names.push_back(parameters[i][k]);
    }
    for (const json& name : groups[i].value("param_names", json::array())) {
      given.push_back(name.is_string() ? name.get<std::string>() : "");
    }
  }
  return std::is_permutation(given.begin(), given.end(), names.begin(), names.end()) ? given
                                                                                     : names;
}

/// Returns the options of one group. Omits those that are dropped, or false and not in `own`, the
/// program's.
json options_of(const json& group, const json& own) {
  json options = json::object();
  for (const auto& [name, value] : group.items()) {
    const bool dropped = std::find(kDropped.begin(), kDropped.end(), name) != kDropped.end();
    const bool off_and_unknown = value == false && !own.contains(name);
    if (!dropped && !off_and_unknown) {
      options[name] = value;
    }
  }
  return options;
}

/// Adam and AdamW have the same options and state; only `decoupled_weight_decay` distinguishes
/// them.
void check_decay(const std::string& path, const json& group, const std::string& type) {
  const json decoupled = group.value("decoupled_weight_decay", json());
  if (decoupled.is_boolean() && (type == "Adam" || type == "AdamW") &&
      decoupled != (type == "AdamW")) {
    throw CheckpointError(
        path,
        fmt::format(
            "holds the state of {}; this program's optimizer is {}",
            decoupled == true ? "AdamW" : "Adam",
            type));
  }
}

NamedTensors by_name(const storage::SafetensorsMap& file, const std::vector<std::string>& names) {
  NamedTensors tensors;
  for (const storage::TensorEntry& entry : file.entries()) {
    const size_t dot = entry.name.find('.');
    size_t index = 0;
    const char* begin = entry.name.data();
    const char* end = begin + std::min(dot, entry.name.size());
    const auto [parsed, fault] = std::from_chars(begin, end, index);
    if (dot == std::string::npos || fault != std::errc() || parsed != end ||
        index >= names.size()) {
      throw CheckpointError(
          file.path(),
          fmt::format("belongs to no parameter; expected 0 to {}", names.size()),
          in_quotes(entry.name));
    }
    file.fetch(entry);
    tensors.push_back({names[index] + entry.name.substr(dot), checkpoint::tensor_of(file, entry)});
  }
  return tensors;
}

ImportedState::Optimizer import_optimizer(
    const fs::path& folder, size_t index, const ImportTarget::Optimizer& target) {
  const fs::path settings_path = folder / (files::optimizer(index) + ".json");
  const std::string path = converted(folder / optimizer_names(index).readable).string();
  const json saved = read_object(converted(settings_path));
  const json groups = saved.value("param_groups", json::array());
  const std::vector<std::string> names =
      counted_names(settings_path.string(), groups, target.parameters);
  json settings = target.settings;
  for (size_t i = 0; i < groups.size(); ++i) {
    check_decay(settings_path.string(), groups[i], settings.at("type").get<std::string>());
    settings["param_groups"][i] = options_of(groups[i], target.settings.at("param_groups").at(i));
  }
  ImportedState::Optimizer imported{
      .tensors = by_name(storage::SafetensorsMap(path), names),
      .settings = std::move(settings),
      .steps = 0,
      .path = path,
      .settings_path = settings_path.string()};
  for (const NamedTensor& item : imported.tensors) {
    if (item.name.ends_with(".step") && item.tensor.numel() == 1) {
      imported.steps = std::max(imported.steps, item.tensor.item().toLong());
    }
  }
  return imported;
}

json import_scheduler(const fs::path& folder, size_t index, const json& own) {
  const fs::path path = folder / scheduler_names(index).readable;
  const json saved = read_object(converted(path));
  const auto take = [&](const char* name) -> const json& {
    if (!saved.contains(name)) {
      throw CheckpointError(
          path.string(),
          fmt::format("lacks {}; this program prepared another kind of schedule", name));
    }
    return saved.at(name);
  };
  json state = own;
  state["steps"] = take("last_epoch");
  if (own.contains("plateau")) {
    state["plateau"] = {
        {"lr", take("_last_lr")},
        {"best", take("best")},
        {"bad_steps", take("num_bad_epochs")},
        {"cooldown_left", take("cooldown_counter")}};
    return state;
  }
  state["counted"] = take("_step_count");
  // Python's base_lrs are of one optimizer; a scheduler of several optimizers keeps the program's.
  if (saved.contains("base_lrs") && own.at("base_rates").size() == 1) {
    state["base_rates"] = json::array({saved.at("base_lrs")});
  }
  return state;
}

}  // namespace

bool is_accelerate_folder(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error) || storage::name_exists(folder / storage::kManifestName)) {
    return false;
  }
  return storage::name_exists(folder / "random_states_0.pkl") ||
         storage::name_exists(folder / optimizer_names(0).pickle);
}

ImportedState import_accelerate(const fs::path& folder, const ImportTarget& target) {
  check_count(folder, "models", model_names, target.models);
  check_count(folder, "optimizers", optimizer_names, target.optimizers.size());
  check_count(folder, "schedulers", scheduler_names, target.schedulers.size());
  ImportedState state;
  std::set<std::string> used;
  for (size_t i = 0; i < target.models; ++i) {
    const FileNames names = model_names(i);
    if (!storage::name_exists(folder / names.readable)) {
      storage::refuse_pickles({folder / names.pickle}, folder / names.readable);
    }
    state.models.push_back(folder / names.readable);
    used.insert({names.pickle, names.readable});
  }
  for (size_t i = 0; i < target.optimizers.size(); ++i) {
    state.optimizers.push_back(import_optimizer(folder, i, target.optimizers[i]));
    const FileNames names = optimizer_names(i);
    used.insert({names.pickle, names.readable, files::optimizer(i) + ".json"});
  }
  for (size_t i = 0; i < target.schedulers.size(); ++i) {
    state.schedulers.push_back(import_scheduler(folder, i, target.schedulers[i]));
    const FileNames names = scheduler_names(i);
    used.insert({names.pickle, names.readable});
  }
  for (const std::string& name : names_in(folder)) {
    if (!used.contains(name)) {
      state.not_imported.push_back(name);
    }
  }
  return state;
}

}  // namespace lockstep::internal
