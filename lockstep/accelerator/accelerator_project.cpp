// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <set>
#include <system_error>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/accelerator_state.h"
#include "lockstep/accelerator/training_state/training_state.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/rank.h"
#include "lockstep/checkpoint/background_save.h"
#include "lockstep/comm/byte_collectives.h"
#include "lockstep/storage/catalog/catalog.h"
#include "lockstep/storage/catalog/retention.h"
#include "lockstep/storage/file/files.h"
#include "lockstep/storage/file/output_file.h"
#include "lockstep/storage/file/project_lock.h"
#include "lockstep/storage/write/temp_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

/// More files at a time do not make a disk faster.
constexpr int kMostWritersPerRank = 4;
/// How often processes ask each other whether to stop.
constexpr double kSecondsBetweenAsking = 0.2;
/// A batch may suddenly take longer than those before.
constexpr int64_t kMostBatchesBetweenAsking = 64;
/// Longer than NFS 4 takes to release the locks of a host that died.
constexpr std::chrono::seconds kWaitForPredecessor(120);

/// What is done for people once the new checkpoint is safe: no reason to stop if it fails.
/// `damaged`: the names of those that do not count for the limit.
void tidy_up(
    const fs::path& folder,
    const std::string& newest,
    std::optional<int> limit,
    const std::set<std::string>& damaged) {
  try {
    storage::write_latest(folder, newest);
    if (limit) {
      // Reading them all through at each save would take longer than saving.
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

/// There are checkpoints, and none can be used. To begin anew would look like going on.
[[noreturn]] void refuse_to_begin_anew(
    const fs::path& folder, const std::vector<storage::Skipped>& skipped) {
  std::vector<std::string> reasons;
  for (const storage::Skipped& each : skipped) {
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

/// Finds out before training, and not at the first save, that a folder cannot be written.
void probe(const fs::path& folder) {
  storage::make_folders(folder);
  const fs::path file = storage::temporary_name(folder / "probe");
  storage::OutputFile(file).append("?");  // Removes itself.
}

/// Takes the lock of project_dir. A job that resumes or was started again waits for what is left of
/// its predecessor: a file server may take 90 s to see that a host has died.
void keep_others_out(
    std::optional<storage::ProjectLock>& lock, const fs::path& folder, bool has_predecessor) {
  try {
    lock.emplace(folder);
  } catch (const CheckpointError& error) {
    if (!has_predecessor) {
      throw;
    }
    log_warning(fmt::format(
        "{}; as this job goes on from an earlier one, it waits for that for {} s",
        error.what(),
        kWaitForPredecessor.count()));
    lock.emplace(folder, kWaitForPredecessor);
  }
  if (!lock->is_held()) {
    log_info(fmt::format(
        "{}: this file system has no locks for this user, so a second job that saves here would "
        "not be noticed",
        folder.string()));
  }
}

}  // namespace

/// What the processes that look at a disk say, on every process: of one disk the main process, of
/// several each host's. What one of them throws, all do.
std::vector<std::string> Accelerator::told_by_disks(
    const SavingGroups& groups, const fs::path& folder, const std::function<std::string()>& say) {
  std::string said;
  if (groups.disk.rank() == 0) {
    try {
      said = "+" + say();
    } catch (const std::exception& error) {
      said = "-" + without_rank_suffix(error.what());
    }
  }
  Group all = groups.all;
  std::vector<std::string> told;
  const std::vector<std::string> texts = all_gather_bytes(all, said);
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank].starts_with('-')) {
      throw CheckpointError(
          folder.string(), fmt::format("rank {} failed: {}", rank, texts[rank].substr(1)));
    }
    if (!texts[rank].empty()) {
      told.push_back(texts[rank].substr(1));
    }
  }
  return told;
}

void Accelerator::configure_project() {
  State& state = *state_;
  AcceleratorOptions& options = state.options;
  ProjectConfiguration& project = options.project_config;
  if (!project.project_dir.empty()) {
    if (!options.project_dir.empty() && options.project_dir != project.project_dir) {
      throw ConfigError(
          "accelerator",
          fmt::format(
              "project_dir is {} and project_config.project_dir {}; give one",
              options.project_dir.string(),
              project.project_dir.string()));
    }
    options.project_dir = project.project_dir;
  }
  if (project.logging_dir.empty()) {
    project.logging_dir = options.project_dir;
  }
  const auto refuse = [](const char* what, int64_t got, const char* expected) {
    throw ConfigError(
        "ProjectConfiguration", fmt::format("{} is {}; expected {}", what, got, expected));
  };
  if (project.total_limit && *project.total_limit < 1) {
    refuse("total_limit", *project.total_limit, "1 or more, or none at all");
  }
  if (project.iteration < 0) {
    refuse("iteration", project.iteration, "0 or more");
  }
  if (project.checkpointing_steps < 0) {
    refuse("checkpointing_steps", project.checkpointing_steps, "0 or more");
  }
  bool resume = Environment::process().boolean("LOCKSTEP_RESUME").value_or(false);
  if (resume && options.project_dir.empty() && state.world.restart_count > 0) {
    // Nobody asked for it but the launcher, which does not know what a program keeps.
    log_warning(fmt::format(
        "restart {}starts from the beginning: without AcceleratorOptions::project_dir there is no "
        "checkpoint to "
        "go on from",
        state.world.restart_count));
    resume = false;
  }
  if (options.project_dir.empty() &&
      (project.checkpointing_steps > 0 || project.total_limit || resume)) {
    throw ConfigError(
        "accelerator",
        fmt::format(
            "{} needs a folder to keep checkpoints in; set AcceleratorOptions::project_dir",
            resume ? "--resume (LOCKSTEP_RESUME)" : "ProjectConfiguration"));
  }
  if (project.checkpointing_steps > 0 && !project.automatic_checkpoint_naming) {
    throw ConfigError(
        "ProjectConfiguration",
        "checkpointing_steps needs automatic_checkpoint_naming: nobody passes those saves a "
        "folder");
  }
  state.resume_pending = resume;

  state.saving = state.group;
  if (project.save_on_each_node && !state.world.on_one_host()) {
    // A launcher numbers the processes of a host one after the other.
    const int leader = state.world.rank - state.world.local_rank;
    state.saving = state.group.split(leader);
    const bool mine = state.saving->size() == state.world.local_size;
    const std::vector<std::string> verdicts = all_gather_bytes(state.group, mine ? "1" : "0");
    if (std::find(verdicts.begin(), verdicts.end(), "0") != verdicts.end()) {
      throw ConfigError(
          "ProjectConfiguration",
          "save_on_each_node needs ranks that are numbered host by host; try srun "
          "--distribution=block, or a disk that all hosts see");
    }
  }
  const int writers = std::clamp(at::get_num_threads(), 1, kMostWritersPerRank);
  const auto told =
      told_by_disks({.all = state.group, .disk = *state.saving}, options.project_dir, [&] {
        if (!options.project_dir.empty()) {
          probe(options.project_dir);
          keep_others_out(
              state.project_lock,
              options.project_dir,
              resume || state.world.restart_count > 0 ||
                  Environment::process().text("SLURM_RESTART_COUNT").has_value());
          if (fs::exists(options.project_dir / "checkpoints")) {
            probe(options.project_dir / "checkpoints");
          }
        }
        return std::to_string(writers);
      });
  state.writers_per_rank = std::stoi(told.front());
  if (options.save_when_preempted && !options.project_dir.empty()) {
    state.stop_requests = std::make_unique<StopRequests>();
  }
  state.active->set_between_batches([this] { between_batches(); });
  state.active->set_before_pass([this] { resume_if_asked(/*in_epochs=*/false); });
}

fs::path Accelerator::checkpoints_folder() const {
  if (state_->options.project_dir.empty()) {
    throw ConfigError(
        "save_state",
        "without a folder it needs AcceleratorOptions::project_dir; set it, or pass one");
  }
  return state_->options.project_dir / "checkpoints";
}

fs::path Accelerator::save_state(const SaveStateOptions& options) {
  checkpoints_folder();  // Says what is missing if there is none.
  if (!state_->options.project_config.automatic_checkpoint_naming) {
    throw ConfigError(
        "save_state",
        "automatic_checkpoint_naming is off; pass the folder to save to, or turn it on");
  }
  return checkpoint::save_despite_failure(
      [this] { wait_for_save(); }, [&] { return save_numbered(options); });
}

fs::path Accelerator::save_numbered(const SaveStateOptions& options) {
  State& state = *state_;
  const ProjectConfiguration& project = state.options.project_config;
  const fs::path folder = checkpoints_folder();
  wait_for_save();  // Its number is taken, though its folder may not be there yet.
  int64_t number = 0;
  for (const std::string& text :
       told_by_disks({.all = state.group, .disk = *state.saving}, folder, [&] {
         int64_t next = std::max(storage::next_sequence(folder), project.iteration);
         while (fs::exists(folder / fmt::format("checkpoint_{}", next))) {
           ++next;
         }
         return std::to_string(next);
       })) {
    number = std::max<int64_t>(number, std::stoll(text));
  }
  const std::string name = fmt::format("checkpoint_{}", number);
  state.damaged.erase(name);  // That one was removed, and this is another.
  save(
      folder / name,
      options,
      [folder, name, limit = project.total_limit, damaged = state.damaged](
          const SavingGroups& groups) {
        told_by_disks(groups, folder, [&] {
          tidy_up(folder, name, limit, damaged);
          return "";
        });
      });
  return folder / name;
}

std::optional<fs::path> Accelerator::newest_checkpoint(storage::Verify verify) {
  State& state = *state_;
  const fs::path folder = checkpoints_folder();
  const std::vector<std::string> names =
      told_by_disks({.all = state.group, .disk = *state.saving}, folder, [&] {
        // Also mends what a save that was cut short has left between two names.
        storage::remove_stale(folder);
        const storage::Newest newest = storage::find_newest(folder, verify);
        std::vector<storage::Skipped> damaged;
        for (const storage::Skipped& skipped : newest.skipped) {
          log_warning(fmt::format("passed over {}: {}", skipped.path.string(), skipped.why));
          if (skipped.was_checkpoint) {
            damaged.push_back(skipped);
            state.damaged.insert(skipped.path.filename());
          }
        }
        if (!newest.path && !damaged.empty()) {
          refuse_to_begin_anew(folder, damaged);
        }
        return newest.path ? newest.path->filename().string() : "";
      });
  // Hosts commit one after the other: where one of them died in between, some have a newer one.
  const std::string name =
      *std::min_element(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
        return std::pair(a.size(), a) < std::pair(b.size(), b);
      });
  if (name.empty() && std::any_of(names.begin(), names.end(), [](const std::string& each) {
        return !each.empty();
      })) {
    throw CheckpointError(
        folder.string(),
        "holds a checkpoint on some hosts and none on others; copy one of a host's own there, or "
        "remove them all to start again");
  }
  return name.empty() ? std::nullopt : std::optional(folder / name);
}

std::optional<fs::path> Accelerator::resume_latest() {
  State& state = *state_;
  wait_for_save();
  state.resume_pending = false;
  state.loaded = true;
  std::optional<fs::path> newest = newest_checkpoint(storage::Verify::kSizes);
  if (!newest) {
    return newest;
  }
  try {
    load_state(*newest);
    return newest;
  } catch (const CheckpointError& error) {
    // Damaged, or not for this program? Only damage is a reason to take an older one.
    std::optional<fs::path> whole = newest_checkpoint(storage::Verify::kFull);
    if (whole == newest) {
      throw;
    }
    log_warning(fmt::format("passed over {}: {}", newest->string(), error.what()));
    if (whole) {
      load_state(*whole);
    }
    return whole;
  }
}

fs::path Accelerator::load_state() {
  const std::optional<fs::path> loaded = resume_latest();
  if (!loaded) {
    throw CheckpointError(
        checkpoints_folder().string(),
        "holds no complete checkpoint to load; resume_latest() starts from the beginning if there "
        "is none");
  }
  return *loaded;
}

void Accelerator::resume_if_asked(bool in_epochs) {
  State& state = *state_;
  if (!state.resume_pending) {
    return;
  }
  state.resume_pending = false;
  if (state.loaded) {
    return;  // The program has seen to it.
  }
  const std::optional<fs::path> newest = resume_latest();
  if (newest && !in_epochs && !state.loaders.empty() && state.loaders.front()->epoch() > 0) {
    log_warning(
        "resumed within a loop over epochs that counts from its beginning; for (epoch : "
        "accelerator.epochs(n)) goes on where it was");
  }
  log_info(
      newest ? fmt::format("resumed from {}", newest->string())
             : "asked to resume, and there is no checkpoint yet: starting from the beginning");
}

// --- between two batches

void Accelerator::request_preemption() {
  const AcceleratorOptions& options = state_->options;
  if (!options.save_when_preempted || options.project_dir.empty()) {
    throw ConfigError(
        "request_preemption", "needs AcceleratorOptions::project_dir, and save_when_preempted");
  }
  state_->preemption_requested = true;
}

bool Accelerator::is_stop_agreed() {
  State& state = *state_;
  const bool mine =
      state.preemption_requested || (state.stop_requests && StopRequests::signal_received() != 0);
  if (state.group.size() == 1) {
    return mine;
  }
  if (--state.batches_until_asking > 0) {
    return false;
  }
  // Often enough to be quick, seldom enough to cost nothing: all ranks reckon alike from what the
  // slowest of them measured.
  const auto now = std::chrono::steady_clock::now();
  const double seconds =
      std::chrono::duration<double>(now - state.last_asked.value_or(now)).count() /
      static_cast<double>(state.batches_between_asking);
  at::Tensor asked = at::zeros({2}, at::kDouble);
  asked.mutable_data_ptr<double>()[0] = mine ? 1 : 0;
  asked.mutable_data_ptr<double>()[1] = seconds;
  const at::Tensor worst = state.group.all_reduce(asked, ReduceOp::kMax).wait();
  const double slowest = worst.const_data_ptr<double>()[1];
  // One batch may have been a quick one: no more than twice as many as before.
  const int64_t most = std::min(2 * state.batches_between_asking, kMostBatchesBetweenAsking);
  state.batches_between_asking =
      state.last_asked && slowest > 0
          ? std::clamp(static_cast<int64_t>(kSecondsBetweenAsking / slowest), int64_t{1}, most)
          : 1;
  state.batches_until_asking = state.batches_between_asking;
  state.last_asked = std::chrono::steady_clock::now();
  return worst.const_data_ptr<double>()[0] > 0;
}

void Accelerator::between_batches() {
  State& state = *state_;
  if (state.joining || !state.loop->sync_gradients) {
    return;  // Not every process need come by here; or within a group, whose end is near.
  }
  const ProjectConfiguration& project = state.options.project_config;
  if (project.checkpointing_steps > 0 && !state.optimizers.empty()) {
    const int64_t steps = state.optimizers.front().steps();
    if (steps / project.checkpointing_steps > state.steps_at_save / project.checkpointing_steps) {
      state.steps_at_save = steps;
      save_state(SaveStateOptions{.async = project.async_checkpointing});
    }
  }
  if (state.options.save_when_preempted && !state.options.project_dir.empty() && is_stop_agreed()) {
    leave_preempted();
  }
}

void Accelerator::leave_preempted() {
  State& state = *state_;
  const int signal = state.stop_requests ? StopRequests::signal_received() : 0;
  try {
    wait_for_save();
  } catch (const std::exception& error) {
    log_error(std::string("the save before this one failed: ") + error.what());
  }
  const fs::path folder = save_numbered({});
  log_info(fmt::format(
      "told to stop{}: saved to {}, leaving with exit code {}; lockstep launch --resume goes on",
      signal == 0 ? "" : fmt::format(" by signal {}", signal),
      folder.string(),
      static_cast<int>(kExitPreempted)));
  state.preemption_requested = false;
  StopRequests::clear();
  if (state.options.on_preempted) {
    state.options.on_preempted(folder);
  }
  end_training();
  std::cout.flush();
  std::fflush(nullptr);
  // Unwinding a loop of the user's would pass through code that knows nothing of it, and static
  // destructors need threads that the others may have taken along.
  ::_exit(kExitPreempted);
}

}  // namespace lockstep
