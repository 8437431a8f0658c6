// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/deepspeed_folder.h"

#include <algorithm>
#include <fstream>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/text/shell.h"
#include "lockstep/storage/manifest.h"

namespace lockstep::storage {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kModelStates = "_model_states.pt";
constexpr std::string_view kOptimizerStates = "_optim_states.pt";
/// The conversion script that DeepSpeed copies next to the tags.
constexpr const char* kConverter = "zero_to_fp32.py";

/// Returns the names in `folder` with this ending, sorted; none if it cannot be listed.
std::vector<std::string> files_ending(const fs::path& folder, std::string_view ending) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().filename().native().ends_with(ending)) {
      names.push_back(entry->path().filename());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// Returns false also if it cannot be examined, for which the caller has a better error.
bool has(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

/// Returns "a/b/" as "/where/a/b", so that it has a name and a parent.
fs::path absolute_name(const fs::path& folder) {
  const fs::path absolute = fs::absolute(folder).lexically_normal();
  return absolute.has_filename() ? absolute : absolute.parent_path();
}

/// The command for a run without ZeRO: all weights are in one pickle, which DeepSpeed's converter
/// refuses. Paths are arguments, not a part of the program. weights_only runs no code of the file.
std::string conversion_without_zero(const fs::path& states) {
  return "mkdir -p OUT && python -c \"import sys, torch; from safetensors.torch import save_file; "
         "s = torch.load(sys.argv[1], map_location='cpu', weights_only=True)['module']; "
         "save_file({k: v.contiguous().clone() for k, v in s.items()}, 'OUT/model.safetensors', "
         "metadata={'format': 'pt'})\" " +
         shell_quoted({states.native()});
}

std::string conversion_of_zero(const fs::path& save_dir, const std::string& tag) {
  const fs::path script = save_dir / kConverter;
  const std::string program = has(script) ? shell_quoted({"python", script.native()})
                                          : "python -m deepspeed.utils.zero_to_fp32";
  return fmt::format(
      "{} {} OUT --safe_serialization --tag {}",
      program,
      shell_quoted({save_dir.native()}),
      shell_quoted({tag}));
}

/// The command for weights, optimizer state and counters, of a run with or without ZeRO.
std::string conversion_of_all(const fs::path& save_dir, const std::string& tag) {
  return fmt::format(
      "python -m lockstep.deepspeed.convert {} OUT --tag {}",
      shell_quoted({save_dir.native()}),
      shell_quoted({tag}));
}

CheckpointError refusal(const fs::path& folder, const fs::path& tag_folder) {
  const std::string model_states = files_ending(tag_folder, kModelStates).front();
  const bool with_zero = !files_ending(tag_folder, kOptimizerStates).empty();
  const fs::path absolute = absolute_name(tag_folder);
  return {
      folder.string(),
      fmt::format(
          "is a DeepSpeed checkpoint with pickles ({}); Lockstep reads no pickles, because reading "
          "a pickle runs code in it; to convert it with the optimizer's state, run: {}; then load "
          "OUT with the engine's load_checkpoint. To convert only the weights, without Lockstep's "
          "Python package, run: {}; then load OUT with load_checkpoint_in_model",
          model_states,
          conversion_of_all(absolute.parent_path(), absolute.filename()),
          with_zero ? conversion_of_zero(absolute.parent_path(), absolute.filename())
                    : conversion_without_zero(absolute / model_states))};
}

bool is_tag_folder(const fs::path& folder) {
  return !has(folder / kManifestName) && !files_ending(folder, kModelStates).empty();
}

/// Returns the tag that `latest` names; empty if there is none.
std::string latest_tag(const fs::path& folder) {
  std::ifstream file(folder / "latest");
  std::string tag;
  std::getline(file, tag);
  return tag.find('/') == std::string::npos && tag != ".." ? tag : "";
}

}  // namespace

std::optional<CheckpointError> deepspeed_checkpoint(const fs::path& folder) {
  if (is_tag_folder(folder)) {
    return refusal(folder, folder);
  }
  const std::string tag = latest_tag(folder);
  if (!tag.empty() && !has(folder / kManifestName) && is_tag_folder(folder / tag)) {
    return refusal(folder, folder / tag);
  }
  return std::nullopt;
}

std::vector<std::string> checkpoint_tags(const fs::path& folder) {
  std::vector<std::string> tags;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (has(entry->path() / kManifestName) || is_tag_folder(entry->path())) {
      tags.push_back(entry->path().filename());
    }
  }
  std::sort(tags.begin(), tags.end(), [](const std::string& left, const std::string& right) {
    return std::pair(left.size(), left) < std::pair(right.size(), right);
  });
  return tags;
}

}  // namespace lockstep::storage
