// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/model_files.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/text/shell.h"
#include "lockstep/storage/deepspeed_folder.h"
#include "lockstep/storage/file/files.h"
#include "lockstep/storage/manifest.h"
#include "lockstep/storage/safetensors/json_text.h"
#include "lockstep/storage/safetensors/slices.h"
#include "lockstep/storage/stored_checkpoint.h"

namespace lockstep::storage {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr uint64_t kMaxIndexBytes = kMaxHeaderBytes;
constexpr std::array<const char*, 5> kPickleSuffixes = {".bin", ".pt", ".pth", ".pkl", ".ckpt"};

bool is_pickle(const fs::path& path) {
  return std::find(kPickleSuffixes.begin(), kPickleSuffixes.end(), path.extension()) !=
         kPickleSuffixes.end();
}

/// The conversion program. Paths are its arguments, so they need no quoting for Python. It clones
/// tensors, since save_file refuses tied weights; weights_only runs no code of the pickle.
std::string conversion(const std::vector<fs::path>& pickles, const fs::path& output) {
  std::vector<std::string> arguments = {output.native()};
  arguments.insert(arguments.end(), pickles.begin(), pickles.end());
  return "python -c \"import sys, torch; from safetensors.torch import save_file; d = {}; "
         "[d.update(torch.load(p, map_location='cpu', weights_only=True)) for p in sys.argv[2:]]; "
         "save_file({k: v.contiguous().clone() for k, v in d.items()}, sys.argv[1], "
         "metadata={'format': 'pt'})\" " +
         shell_quoted(arguments);
}

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    files.push_back(entry->path());
  }
  if (error) {
    throw CheckpointError(folder, "cannot be listed; " + error.message());
  }
  std::sort(files.begin(), files.end());
  return files;
}

/// Returns the pickles in a folder that contain weights, judged by their names.
std::vector<fs::path> weights_among(const std::vector<fs::path>& pickles) {
  std::vector<fs::path> shards;
  for (const fs::path& path : pickles) {
    const std::string name = path.filename();
    if (name == "pytorch_model.bin") {
      return {path};
    }
    if (name.starts_with("pytorch_model-")) {
      shards.push_back(path);
    }
  }
  return shards.empty() ? std::vector{pickles.front()} : shards;
}

[[noreturn]] void refuse_folder(const fs::path& folder) {
  if (const auto theirs = deepspeed_checkpoint(folder)) {
    throw CheckpointError(*theirs);
  }
  std::vector<fs::path> pickles;
  std::vector<std::string> others;
  size_t shards = 0;
  for (const fs::path& path : files_in(folder)) {
    if (is_pickle(path)) {
      pickles.push_back(path);
    } else if (is_model_shard(path.filename().native())) {
      ++shards;
    } else if (path.extension() == ".safetensors") {
      others.push_back(path.filename());
    }
  }
  if (shards > 0) {
    throw CheckpointError(
        folder,
        fmt::format(
            "has {} of a model but no {}, which is written last; the save was interrupted; save "
            "again into this folder to repair it",
            shards == 1 ? "a shard" : fmt::format("{} shards", shards),
            kModelIndex));
  }
  if (!others.empty()) {
    throw CheckpointError(
        folder,
        fmt::format(
            "holds neither {} nor {}; try one of its {} other .safetensors files, such as {}",
            kModelFile,
            kModelIndex,
            others.size(),
            in_quotes(others.front())));
  }
  if (!pickles.empty()) {
    refuse_pickles(weights_among(pickles), folder / kModelFile);
  }
  throw CheckpointError(
      folder, fmt::format("holds no weights; expected {} or {} in it", kModelFile, kModelIndex));
}

Links links_of(const fs::path& path) {
  return name_exists(path.parent_path() / kManifestName) ? Links::kRefuse : Links::kFollow;
}

/// Returns whether the manifest, which may be damaged, seems to be one of Lockstep.
bool is_manifest_of_ours(const fs::path& folder) {
  const std::string text = read_file(folder / kManifestName, kMaxManifestBytes, Links::kFollow);
  return text.find(kManifestFormat) != std::string::npos;
}

void refuse_slices(const SafetensorsMap& file) {
  if (file.metadata().contains(kSlicesKey)) {
    throw CheckpointError(
        file.path(),
        fmt::format(
            "holds slices of tensors, whose other slices are in other files; try lockstep "
            "merge-weights {} OUT",
            shell_quoted({fs::path(file.path()).parent_path().native()})));
  }
}

/// Returns the checkpoint of Lockstep that contains a file, if any. Another program's manifest.json
/// is ignored; a damaged manifest of Lockstep is an error.
std::optional<StoredCheckpoint> checkpoint_around(const fs::path& path) {
  const fs::path folder = path.parent_path();
  if (!name_exists(folder / kManifestName)) {
    return std::nullopt;
  }
  try {
    return StoredCheckpoint(folder, Verify::kManifest);
  } catch (const CheckpointError&) {
    if (is_manifest_of_ours(folder)) {
      throw;
    }
    return std::nullopt;
  }
}

SafetensorsMap open_unsliced(const fs::path& path) {
  const std::optional<StoredCheckpoint> stored = checkpoint_around(path);
  SafetensorsMap file =
      stored ? stored->tensor_map(path.filename()) : SafetensorsMap(path, links_of(path));
  refuse_slices(file);
  return file;
}

std::vector<SafetensorsMap> open_checkpoint_model(const fs::path& folder) {
  const StoredCheckpoint stored(folder, Verify::kManifest);
  if (!stored.has(kModelFile)) {
    throw CheckpointError(
        folder,
        fmt::format(
            "is a checkpoint of Lockstep without {}; try lockstep merge-weights {} OUT",
            kModelFile,
            shell_quoted({folder.native()})));
  }
  std::vector<SafetensorsMap> files;
  files.push_back(stored.tensor_map(kModelFile));
  refuse_slices(files.front());
  return files;
}

/// Returns the file of each tensor.
std::map<std::string, std::string> weight_map(const fs::path& path, const Json& index) {
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    throw CheckpointError(
        path, "is not an index of weights; expected an object \"weight_map\" in it");
  }
  std::map<std::string, std::string> places;
  for (const auto& [name, file] : index["weight_map"].items()) {
    if (!file.is_string()) {
      throw CheckpointError(
          path,
          fmt::format("is mapped to {}, expected the name of a file", in_quotes(file.dump())),
          in_quotes(name));
    }
    places[name] = file.get<std::string>();
    check_file_name(path, places[name]);
  }
  return places;
}

/// Warns about a wrong total_size. Accelerate and transformers ignore it, and all tensors exist.
void warn_of_wrong_total(const fs::path& path, const Json& index, uint64_t total) {
  const Json metadata = index.value("metadata", Json());
  if (!metadata.is_object() || !metadata.contains("total_size") ||
      metadata["total_size"] == total) {
    return;
  }
  log_warning(fmt::format(
      "[{}] has a wrong metadata.total_size; got {}, expected {} (the bytes of its tensors); the "
      "tensors are loaded; to silence this warning, correct the number",
      path.native(),
      in_quotes(metadata["total_size"].dump()),
      total));
}

std::vector<SafetensorsMap> open_index(const fs::path& path) {
  const Json index = parse_json(path, read_file(path, kMaxIndexBytes, links_of(path)));
  const std::map<std::string, std::string> places = weight_map(path, index);
  std::map<std::string, std::vector<std::string>> tensors;  // Tensors by file.
  for (const auto& [name, file] : places) {
    tensors[file].push_back(name);
  }
  std::vector<fs::path> pickles;
  for (const auto& [file, names] : tensors) {
    if (is_pickle(file)) {
      pickles.push_back(path.parent_path() / file);
    }
  }
  if (!pickles.empty()) {
    refuse_pickles(pickles, path.parent_path() / kModelFile);
  }
  std::vector<SafetensorsMap> files;
  uint64_t total = 0;
  for (const auto& [file, names] : tensors) {
    const fs::path shard = path.parent_path() / file;
    if (!name_exists(shard)) {
      throw CheckpointError(
          shard, fmt::format("is missing; {} maps {} tensors to it", path.native(), names.size()));
    }
    files.push_back(open_unsliced(shard));
    for (const std::string& name : names) {
      if (!files.back().has(name)) {
        throw CheckpointError(
            shard,
            fmt::format("lacks a tensor that {} maps to it", path.native()),
            in_quotes(name));
      }
    }
    for (const TensorEntry& entry : files.back().entries()) {
      const auto place = places.find(entry.name);
      if (place == places.end() || place->second != file) {
        throw CheckpointError(
            shard,
            fmt::format(
                "holds a tensor that {} {}",
                path.native(),
                place == places.end() ? "does not list" : "maps to another file"),
            in_quotes(entry.name));
      }
      total += entry.end - entry.begin;
    }
  }
  warn_of_wrong_total(path, index, total);
  return files;
}

std::vector<SafetensorsMap> open_folder(const fs::path& folder) {
  if (name_exists(folder / kManifestName)) {
    return open_checkpoint_model(folder);
  }
  // In the order of transformers.
  if (name_exists(folder / kModelFile)) {
    std::vector<SafetensorsMap> files;
    files.push_back(open_unsliced(folder / kModelFile));
    return files;
  }
  if (name_exists(folder / kModelIndex)) {
    return open_index(folder / kModelIndex);
  }
  refuse_folder(folder);
}

}  // namespace

void refuse_pickles(const std::vector<fs::path>& pickles, const fs::path& output) {
  throw CheckpointError(
      pickles.front(),
      "is a pickle, which is never read because reading one runs code in it; to convert it, run: " +
          conversion(pickles, output));
}

bool is_model_shard(std::string_view name) {
  constexpr std::string_view kLike = "model-#####-of-#####.safetensors";  // Digits replace #.
  return std::equal(name.begin(), name.end(), kLike.begin(), kLike.end(), [](char c, char like) {
    return like == '#' ? c >= '0' && c <= '9' : c == like;
  });
}

std::vector<SafetensorsMap> open_model_files(const fs::path& path) {
  if (!name_exists(path)) {
    throw CheckpointError(path, "does not exist; expected the weights of a model");
  }
  std::error_code error;
  if (fs::is_directory(path, error)) {
    return open_folder(path);
  }
  if (path.extension() == ".json") {
    return open_index(path);
  }
  if (is_pickle(path)) {
    refuse_pickles({path}, fs::path(path).replace_extension(".safetensors"));
  }
  std::vector<SafetensorsMap> files;
  files.push_back(open_unsliced(path));
  return files;
}

}  // namespace lockstep::storage
