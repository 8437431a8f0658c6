// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/checkpointing/project_folder.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/Parallel.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/rank.h"
#include "lockstep/comm/byte_collectives.h"
#include "lockstep/storage/catalog/retention.h"
#include "lockstep/storage/file/files.h"
#include "lockstep/storage/file/output_file.h"
#include "lockstep/storage/write/temp_folder.h"

namespace lockstep::internal {
namespace {

namespace fs = std::filesystem;

/// Marks the newest checkpoint and removes old ones. The new one is safe, so a failure is a
/// warning.
void tidy_up(
    const fs::path& folder,
    const std::string& newest,
    std::optional<int> limit,
    const std::set<std::string>& damaged) {
  try {
    storage::write_latest(folder, newest);
    if (limit) {
      // Reading all of them at each save would take longer than saving.
      storage::prune(
          folder,
          {.keep = *limit,
           .only_numbered = true,
           .verify = storage::Verify::kSizes,
           .damaged = damaged});
    }
  } catch (const std::exception& error) {
    log_warning(fmt::format("{} is saved, but {}", (folder / newest).string(), error.what()));
  }
}

/// Throws, since a start from the beginning would look like a resume.
[[noreturn]] void refuse_to_start_again(
    const fs::path& folder, const std::vector<storage::SkippedEntry>& skipped) {
  std::vector<std::string> reasons;
  for (const storage::SkippedEntry& each : skipped) {
    reasons.push_back(without_rank_suffix(each.why));
  }
  throw CheckpointError(
      folder.string(),
      fmt::format(
          "holds {}, of which none can be used: {}; to start again, remove {}, or set another "
          "project_dir",
          reasons.size() == 1 ? "a checkpoint" : fmt::format("{} checkpoints", reasons.size()),
          fmt::join(reasons, "; "),
          reasons.size() == 1 ? "it" : "them"));
}

/// Throws before training, not at the first save, if a folder cannot be written.
void probe(const fs::path& folder) {
  storage::make_folders(folder);
  const fs::path file = storage::temporary_name(folder / "probe");
  storage::OutputFile(file).append("?");  // Removes itself.
}

/// Returns the groups of a checkpoint. Collective.
SavingGroups saving_groups(const RunContext& context) {
  SavingGroups groups{.all = context.group, .disk = context.group};
  if (!context.options.project_config.save_on_each_node || context.world.on_one_host()) {
    return groups;
  }
  // A launcher gives the processes of a host consecutive ranks.
  const int leader = context.world.rank - context.world.local_rank;
  groups.disk = groups.all.split(leader);
  const bool is_host = groups.disk.size() == context.world.local_size;
  const std::vector<std::string> hosts = all_gather_bytes(groups.all, is_host ? "1" : "0");
  if (std::find(hosts.begin(), hosts.end(), "0") != hosts.end()) {
    throw ConfigError(
        "ProjectConfiguration",
        "save_on_each_node needs ranks that are numbered host by host; try srun "
        "--distribution=block, or a disk that all hosts see");
  }
  return groups;
}

}  // namespace

ProjectFolder::ProjectFolder(const RunContext& context)
    : context_(context), groups_(saving_groups(context)) {
  constexpr int kMostWritersPerRank = 4;  // More files at a time do not make a disk faster.
  const fs::path& folder = context.options.project_dir;
  const int writers = std::clamp(at::get_num_threads(), 1, kMostWritersPerRank);
  const std::vector<std::string> reports = reports_of_disks(groups_, folder, [&] {
    if (!folder.empty()) {
      probe(folder);
      if (context.options.project_config.automatic_checkpoint_naming ||
          context.options.save_when_preempted) {
        take_lock();
      }
      if (fs::exists(folder / "checkpoints")) {
        probe(folder / "checkpoints");
      }
    }
    return std::to_string(writers);
  });
  writers_per_rank_ = std::stoi(reports.front());
}

/// Takes the lock of project_dir. A job that resumes or was restarted waits for its predecessor: a
/// file server may take 90 s to see that a host has died.
void ProjectFolder::take_lock() {
  // Longer than NFS 4 takes to release the locks of a host that died.
  constexpr std::chrono::seconds kWaitForPredecessor(120);
  const fs::path& folder = context_.options.project_dir;
  const bool has_predecessor = context_.resume || context_.world.restart_count > 0 ||
                               Environment::process().text("SLURM_RESTART_COUNT").has_value();
  try {
    lock_.emplace(folder);
  } catch (const CheckpointError& error) {
    if (!has_predecessor) {
      throw;
    }
    log_warning(fmt::format(
        "{}; this job resumes an earlier one, so it waits up to {} s for that job to end",
        error.what(),
        kWaitForPredecessor.count()));
    lock_.emplace(folder, kWaitForPredecessor);
  }
  if (!lock_->is_held()) {
    log_info(fmt::format(
        "{}: this file system has no locks for this user, so a second job that saves here is not "
        "detected",
        folder.string()));
  }
}

fs::path ProjectFolder::checkpoints() const {
  if (context_.options.project_dir.empty()) {
    throw ConfigError(
        "save_state",
        "save_state() without a folder needs AcceleratorOptions::project_dir; set it, or pass a "
        "folder");
  }
  return context_.options.project_dir / "checkpoints";
}

fs::path ProjectFolder::next_checkpoint() {
  const fs::path folder = checkpoints();
  int64_t number = 0;
  for (const std::string& text : reports_of_disks(groups_, folder, [&] {
         return std::to_string(std::max(
             storage::next_checkpoint_number(folder), context_.options.project_config.iteration));
       })) {
    number = std::max<int64_t>(number, std::stoll(text));
  }
  const std::string name = fmt::format("checkpoint_{}", number);
  damaged_.erase(name);  // A damaged checkpoint of that name was removed.
  return folder / name;
}

std::function<void(const SavingGroups&)> ProjectFolder::finish_save(const fs::path& folder) const {
  return [folder = folder.parent_path(),
          name = folder.filename().string(),
          limit = context_.options.project_config.total_limit,
          damaged = damaged_](const SavingGroups& groups) {
    reports_of_disks(groups, folder, [&] {
      tidy_up(folder, name, limit, damaged);
      return "";
    });
  };
}

std::optional<fs::path> ProjectFolder::newest_checkpoint(storage::Verify verify) {
  const fs::path folder = checkpoints();
  const std::vector<std::string> names = reports_of_disks(groups_, folder, [&] {
    // Also completes the rename of a save that was interrupted.
    storage::remove_stale(folder);
    const storage::NewestCheckpoint newest = storage::find_newest(folder, verify);
    std::vector<storage::SkippedEntry> damaged;
    for (const storage::SkippedEntry& skipped : newest.skipped) {
      log_warning(fmt::format("skipped {}: {}", skipped.path.string(), skipped.why));
      if (skipped.was_checkpoint) {
        damaged.push_back(skipped);
        damaged_.insert(skipped.path.filename());
      }
    }
    if (!newest.path && !damaged.empty()) {
      refuse_to_start_again(folder, damaged);
    }
    return newest.path ? newest.path->filename().string() : "";
  });
  // Hosts commit one after the other: if one of them died in between, some have a newer one.
  const std::string name =
      *std::min_element(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
        return std::pair(a.size(), a) < std::pair(b.size(), b);
      });
  if (name.empty() && std::any_of(names.begin(), names.end(), [](const std::string& each) {
        return !each.empty();
      })) {
    throw CheckpointError(
        folder.string(),
        "holds checkpoints on some hosts only; copy each host's own checkpoint back, or remove all "
        "checkpoints to start from the beginning");
  }
  return name.empty() ? std::nullopt : std::optional(folder / name);
}

}  // namespace lockstep::internal
