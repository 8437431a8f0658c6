// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/write/model_shards.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/storage/file/files.h"
#include "lockstep/storage/file/output_file.h"
#include "lockstep/storage/manifest.h"
#include "lockstep/storage/model_files.h"
#include "lockstep/storage/safetensors/json_text.h"
#include "lockstep/storage/safetensors/safetensors_header.h"
#include "lockstep/storage/write/temp_folder.h"

namespace lockstep::storage {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// A temporary folder, which the destructor removes with its content unless keep() was called.
class WorkFolder {
 public:
  explicit WorkFolder(const fs::path& path) : path_(path), owned_(path) {}
  ~WorkFolder() {
    if (!keep_) {
      std::error_code ignored;
      fs::remove_all(path_, ignored);
    }
  }
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;
  const fs::path& path() const { return path_; }
  void keep() { keep_ = true; }

 private:
  fs::path path_;
  OwnedFolder owned_;
  bool keep_ = false;
};

std::string shard_name(size_t number, size_t count) {
  return count == 1 ? kModelFile : fmt::format("model-{:05}-of-{:05}.safetensors", number, count);
}

/// Renders the index as Python's json.dumps(index, indent=2, sort_keys=True).
std::string render_index(const std::map<std::string, std::string>& places, uint64_t total_bytes) {
  const Json index = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", places}};
  return index.dump(2, ' ', true) + "\n";
}

void write_text(const fs::path& path, const std::string& text) {
  OutputFile file(path);
  file.append(text);
  file.finish();
}

void move_file(const fs::path& from, const fs::path& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) {
    throw_errno(to, "cannot be replaced");
  }
}

void remove_file(const fs::path& path) {
  std::error_code error;
  fs::remove(path, error);
  if (error) {
    throw CheckpointError(
        path, "belongs to an earlier save and cannot be removed; " + error.message());
  }
}

bool is_weights(std::string_view name) {
  return name == kModelFile || name == kModelIndex || is_model_shard(name);
}

/// Returns the files of weights of an earlier save, sorted.
std::vector<std::string> weights_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (is_weights(name)) {
      names.push_back(name);
    }
  }
  if (error) {
    throw CheckpointError(folder, "cannot be listed; " + error.message());
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// Renames the files from `work` to `folder`, the index last. Files that are not in `work` are
/// already renamed.
void rename_into_place(
    const fs::path& work, const fs::path& folder, const std::vector<std::string>& names) {
  const std::vector<std::string> old = weights_in(folder);
  const auto is_new = [&](const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  const bool shards_change = std::any_of(old.begin(), old.end(), [&](const std::string& name) {
    return is_model_shard(name) && is_new(name);
  });
  if (shards_change) {
    // The old index must not be used with the new shards. From here on only `work` has complete
    // weights, see finish_stale.
    sync_folder(work);
    remove_file(folder / kModelIndex);
    sync_folder(folder);
  }
  for (const std::string& name : names) {
    if (name == kModelIndex) {
      sync_folder(folder);
    }
    if (name_exists(work / name)) {
      move_file(work / name, folder / name);
    }
  }
  sync_folder(folder);
  for (const std::string& name : old) {
    if (!is_new(name)) {
      remove_file(folder / name);
    }
  }
}

/// Returns whether a reader finds weights in the folder.
bool has_weights(const fs::path& folder) {
  return name_exists(folder / kModelFile) || name_exists(folder / kModelIndex);
}

/// Returns the shards that an index names, sorted; none if it is not a complete index.
std::set<std::string> shards_of(const fs::path& index) {
  const std::string text = read_file(index, kMaxHeaderBytes);
  std::set<std::string> shards;
  try {
    const Json json = parse_json(index, text);
    for (const auto& [name, shard] : json.at("weight_map").items()) {
      shards.insert(shard.get<std::string>());
    }
  } catch (const CheckpointError&) {
    return {};
  } catch (const Json::exception&) {
    return {};
  }
  return std::all_of(shards.begin(), shards.end(), is_model_shard) ? shards
                                                                   : std::set<std::string>();
}

/// Completes a save that was killed while it renamed shards. It has removed the old index, so the
/// renamed files and those still in `work` are the only weights.
void finish_stale(const fs::path& work) {
  const fs::path folder = work.parent_path();
  if (has_weights(folder)) {
    return;  // It was killed before that, or another save has succeeded since.
  }
  const std::set<std::string> shards = shards_of(work / kModelIndex);
  std::vector<std::string> names(shards.begin(), shards.end());
  const bool complete = std::all_of(names.begin(), names.end(), [&](const std::string& name) {
    return name_exists(work / name) || name_exists(folder / name);
  });
  if (complete && !names.empty()) {
    names.emplace_back(kModelIndex);
    rename_into_place(work, folder, names);
  }
}

/// Creates `folder` and removes the remains of killed saves. Returns the name of a temporary
/// folder. Throws if `folder` is a checkpoint.
fs::path prepare_folder(const fs::path& folder) {
  make_folders(folder);
  if (name_exists(folder / kManifestName)) {
    throw CheckpointError(
        folder, "is a checkpoint, whose files must not change; try another folder");
  }
  remove_stale(folder, finish_stale);
  return temporary_name(folder / "model");
}

}  // namespace

std::vector<std::vector<size_t>> split_into_shards(
    const std::vector<uint64_t>& tensor_bytes, uint64_t max_shard_bytes) {
  std::vector<std::vector<size_t>> shards;
  std::vector<size_t> open;
  uint64_t open_bytes = 0;
  for (size_t i = 0; i < tensor_bytes.size(); ++i) {
    if (tensor_bytes[i] > max_shard_bytes) {
      shards.push_back({i});
      continue;
    }
    if (tensor_bytes[i] > max_shard_bytes - open_bytes) {
      shards.push_back(std::exchange(open, {}));
      open_bytes = 0;
    }
    open.push_back(i);
    open_bytes += tensor_bytes[i];
  }
  if (!open.empty() || shards.empty()) {
    shards.push_back(std::move(open));
  }
  return shards;
}

std::vector<std::string> write_model_files(
    const fs::path& folder, const std::vector<OutputTensor>& tensors, uint64_t max_shard_bytes) {
  std::vector<uint64_t> sizes;
  uint64_t total_bytes = 0;
  for (const OutputTensor& tensor : tensors) {
    sizes.push_back(output_bytes(folder, tensor));
    total_bytes += sizes.back();
  }
  WorkFolder work(prepare_folder(folder));
  const std::vector<std::vector<size_t>> shards = split_into_shards(sizes, max_shard_bytes);
  std::vector<std::string> names;
  std::map<std::string, std::string> places;
  for (const std::vector<size_t>& shard : shards) {
    names.push_back(shard_name(names.size() + 1, shards.size()));
    std::vector<OutputTensor> content;
    for (const size_t place : shard) {
      content.push_back(tensors[place]);
      if (!places.emplace(tensors[place].name, names.back()).second) {
        throw CheckpointError(
            folder, "cannot be written; the name is used twice", in_quotes(tensors[place].name));
      }
    }
    write_safetensors_file(work.path() / names.back(), content, {{"format", "pt"}});
  }
  if (shards.size() > 1) {
    names.emplace_back(kModelIndex);
    write_text(work.path() / kModelIndex, render_index(places, total_bytes));
  }
  try {
    rename_into_place(work.path(), folder, names);
  } catch (const CheckpointError&) {
    if (!has_weights(folder)) {
      work.keep();  // For finish_stale: these are the only weights.
    }
    throw;
  }
  return names;
}

void write_model_file(
    const fs::path& folder, const std::string& name, const std::vector<OutputTensor>& tensors) {
  const WorkFolder work(prepare_folder(folder));
  write_safetensors_file(work.path() / name, tensors, {{"format", "pt"}});
  move_file(work.path() / name, folder / name);
  sync_folder(folder);
}

}  // namespace lockstep::storage
