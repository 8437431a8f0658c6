// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <optional>
#include <system_error>

#include <fmt/format.h>

#include "cli/checkpoint/checkpoint_reports.h"
#include "lockstep/storage/catalog/catalog.h"
#include "lockstep/storage/deepspeed_folder.h"
#include "lockstep/storage/file/files.h"
#include "lockstep/storage/safetensors/byte_size.h"
#include "lockstep/storage/write/temp_folder.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;
using storage::CheckpointEntry;
using storage::Manifest;
using Json = nlohmann::json;

void require_folder(const fs::path& path) {
  if (const auto why = storage::why_not_folder(path)) {
    throw ConfigError(path, *why);
  }
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    throw ConfigError(path, "is not a folder; expected an existing folder");
  }
}

void require_parent(const fs::path& folder) {
  require_folder(folder);
  if (storage::name_exists(folder / storage::kManifestName)) {
    throw ConfigError(
        folder,
        fmt::format(
            "is a checkpoint; expected a folder of checkpoints; try lockstep checkpoint show {}",
            folder.native()));
  }
}

uint64_t bytes_of(const Manifest& manifest) {
  return std::accumulate(
      manifest.files.begin(),
      manifest.files.end(),
      uint64_t{0},
      [](uint64_t sum, const auto& file) { return sum + file.summary.bytes; });
}

/// Returns null if the meta data has no step.
Json step_of(const Manifest& manifest) {
  return manifest.meta.value("step", Json());
}

/// Returns the index of the checkpoint that a resume would load.
std::optional<size_t> newest_of(const std::vector<CheckpointEntry>& listed) {
  for (size_t i = listed.size(); i-- > 0;) {
    if (listed[i].manifest && listed[i].why.empty()) {
      return i;
    }
  }
  return std::nullopt;
}

bool is_leftover(const CheckpointEntry& listed) {
  return storage::is_temporary_name(listed.path.filename().native());
}

std::string state_of(const CheckpointEntry& listed) {
  if (is_leftover(listed)) {
    return "incomplete: it is being written, or a killed save or prune left it; the next save or "
           "prune removes it";
  }
  if (!listed.why.empty()) {
    return "not valid: " + printable(without_folder(listed.why, listed.path));
  }
  std::error_code error;
  const fs::path target = fs::read_symlink(listed.path, error);
  return error ? "valid" : fmt::format("valid; a symbolic link to {}", printable(target));
}

Json to_json(const CheckpointEntry& listed, bool newest) {
  Json json = {
      {"name", listed.path.filename().native()},
      {"path", listed.path.native()},
      {"valid", listed.why.empty()},
      {"why", listed.why.empty() ? Json() : Json(listed.why)},
      {"newest", newest},
      {"leftover", is_leftover(listed)},
      {"sequence", nullptr},
      {"step", nullptr},
      {"world_size", nullptr},
      {"files", nullptr},
      {"bytes", nullptr}};
  if (listed.manifest) {
    json["sequence"] = listed.manifest->sequence;
    json["step"] = step_of(*listed.manifest);
    json["world_size"] = listed.manifest->world_size;
    json["files"] = listed.manifest->files.size();
    json["bytes"] = bytes_of(*listed.manifest);
  }
  return json;
}

std::vector<std::string> to_row(const CheckpointEntry& listed, bool newest) {
  const std::string name = (newest ? "* " : "  ") + printable(listed.path.filename());
  const std::string state = state_of(listed);
  if (!listed.manifest) {
    return {name, "-", "-", "-", "-", "-", state};
  }
  const Manifest& manifest = *listed.manifest;
  const Json step = step_of(manifest);
  return {
      name,
      std::to_string(manifest.sequence),
      step.is_null() ? "-" : printable(step.dump()),
      std::to_string(manifest.world_size),
      std::to_string(manifest.files.size()),
      storage::format_bytes(bytes_of(manifest)),
      state};
}

}  // namespace

storage::StoredCheckpoint open_checkpoint(const fs::path& path, storage::Verify verify) {
  require_folder(path);
  if (!storage::name_exists(path / storage::kManifestName)) {
    if (const auto newest = storage::find_newest(path).path) {
      throw ConfigError(
          path,
          fmt::format(
              "is a folder of checkpoints; expected a checkpoint; try the newest one, {}",
              newest->native()));
    }
  }
  return storage::StoredCheckpoint(path, verify);
}

Report list_report(const fs::path& folder) {
  require_parent(folder);
  const std::vector<CheckpointEntry> listed = storage::list_checkpoints(folder);
  const std::optional<size_t> newest = newest_of(listed);
  const bool none = std::none_of(listed.begin(), listed.end(), [](const CheckpointEntry& item) {
    return item.manifest.has_value();
  });
  if (const auto deepspeeds = storage::deepspeed_checkpoint(folder); none && deepspeeds) {
    throw CheckpointError(*deepspeeds);
  }
  Report report;
  Json entries = Json::array();
  std::vector<std::vector<std::string>> rows = {
      {"  NAME", "SEQUENCE", "STEP", "RANKS", "FILES", "SIZE", "STATE"}};
  for (size_t i = 0; i < listed.size(); ++i) {
    entries.push_back(to_json(listed[i], i == newest));
    rows.push_back(to_row(listed[i], i == newest));
  }
  report.json = {
      {"folder", folder.native()},
      {"newest", newest ? Json(listed[*newest].path.filename().native()) : Json()},
      {"checkpoints", std::move(entries)}};
  if (listed.empty()) {
    report.text = printable(folder) + ": no checkpoints\n";
  } else {
    report.text =
        render_table(rows, {false, true, true, true, true, true, false}, terminal_columns());
    report.text += newest ? "  * is the newest valid checkpoint\n" : "  no checkpoint is valid\n";
  }
  return report;
}

Report prune_report(const fs::path& folder, const storage::PruneOptions& options) {
  require_parent(folder);
  Report report;
  Json cleaned_up = Json::array();
  if (!options.dry_run) {
    for (const fs::path& path : storage::remove_stale(folder)) {
      cleaned_up.push_back(path.filename().native());
      report.text +=
          fmt::format("removed {}, which a killed save or prune left\n", printable(path));
    }
  }
  const std::vector<CheckpointEntry> before = storage::list_checkpoints(folder);
  Json damaged = Json::array();
  storage::PruneOptions reporting = options;
  reporting.not_counted = [&](const storage::SkippedEntry& skipped) {
    damaged.push_back({{"name", skipped.path.filename().native()}, {"why", skipped.why}});
    report.text += fmt::format(
        "{} is damaged and does not count: {}\n",
        printable(skipped.path),
        printable(without_folder(skipped.why, skipped.path)));
  };
  const std::vector<fs::path> old = storage::prune(folder, reporting);
  Json removed = Json::array();
  Json kept = Json::array();
  uint64_t bytes = 0;
  for (const CheckpointEntry& listed : before) {
    if (!listed.manifest) {
      continue;
    }
    if (std::find(old.begin(), old.end(), listed.path) == old.end()) {
      kept.push_back(listed.path.filename().native());
      continue;
    }
    const uint64_t own = bytes_of(*listed.manifest);
    bytes += own;
    removed.push_back(
        {{"name", listed.path.filename().native()},
         {"path", listed.path.native()},
         {"sequence", listed.manifest->sequence},
         {"bytes", own}});
    report.text += fmt::format(
        "{} {} ({})\n",
        options.dry_run ? "would remove" : "removed",
        printable(listed.path),
        storage::format_bytes(own));
  }
  report.text += fmt::format(
      "{} {}, {}; {} {}\n",
      counted(removed.size(), "checkpoint"),
      options.dry_run ? "would be removed" : "removed",
      storage::format_bytes(bytes),
      kept.size(),
      options.dry_run ? "would be kept" : "kept");
  report.json = {
      {"folder", folder.native()},
      {"keep", options.keep},
      {"dry_run", options.dry_run},
      {"removed", std::move(removed)},
      {"kept", std::move(kept)},
      {"damaged", std::move(damaged)},
      {"cleaned_up", std::move(cleaned_up)},
      {"bytes", bytes}};
  return report;
}

}  // namespace lockstep::cli
