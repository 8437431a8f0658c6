// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/checkpointing/state_saver.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <random>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <ATen/DeviceAccelerator.h>

#include "lockstep/accelerator/prepare/divided_state.h"
#include "lockstep/accelerator/values/operations.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/rank.h"
#include "lockstep/checkpoint/writer.h"
#include "lockstep/comm/fail_together.h"
#include "lockstep/storage/saved_meta.h"
#include "lockstep/watch/flight_recorder.h"

namespace lockstep::internal {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/// Returns a random id, not from torch's generators, whose numbers belong to the training.
std::string random_id() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

/// Runs `body` on the leading process of each disk, which may use parameters of stage 3 there, one
/// after the other. The other processes help to unshard them, and return when it is done.
/// Collective.
void unshard_while(
    const PreparedObjects& objects, const SavingGroups& groups, const std::function<void()>& body) {
  zero::ParamCoordinator* const coordinator =
      objects.shards_parameters() ? objects.sharding->coordinator() : nullptr;
  const zero::ExactValues exact(coordinator);
  const auto until_all_are_done = [&] {
    if (coordinator != nullptr) {
      coordinator->wait_for_all(0, groups.all);
    }
  };
  if (groups.is_writer()) {
    try {
      body();
    } catch (const std::exception&) {
      until_all_are_done();
      throw;
    }
  }
  until_all_are_done();
}

/// Writes one checkpoint, on the caller's thread or another one.
class CheckpointWrite {
 public:
  using WriteMore = std::function<void(checkpoint::Writer&, const SavingGroups&)>;

  CheckpointWrite(
      fs::path folder,
      checkpoint::WriterOptions options,
      std::shared_ptr<const checkpoint::Contents> contents,
      nlohmann::json meta,
      StateSaver::AfterCommit after)
      : folder_(std::move(folder)),
        options_(options),
        contents_(std::move(contents)),
        meta_(std::move(meta)),
        after_(std::move(after)) {}

  /// Writes and commits. `write_more` writes further files before. Throws CheckpointError on all
  /// processes if one fails. Collective.
  void run(const SavingGroups& given, const WriteMore& write_more = nullptr) const {
    // Includes what follows the commit: an old checkpoint may take long to remove.
    const watch::Saving saving;
    const SavingGroups groups = given.with_saving_timeout();
    std::string failure;
    try {
      write(groups, write_more);
    } catch (const CheckpointError& error) {
      failure = without_rank_suffix(error.what());
      if (!groups.on_each_host()) {
        throw;  // All processes throw the same.
      }
    }
    if (groups.on_each_host()) {
      agree(groups, failure);
    }
    if (after_) {
      after_(groups);
    }
  }

 private:
  void write(const SavingGroups& groups, const WriteMore& write_more) const {
    std::optional<checkpoint::Writer> writer;
    const auto begin = [&] {
      if (options_.overwrite && groups.on_each_host() && fs::exists(folder_)) {
        throw CheckpointError(
            folder_.string(),
            "already exists, and save_on_each_node never overwrites, since one host may fail; save "
            "under another name, or remove it on all hosts first");
      }
      writer.emplace(groups.disk, folder_, options_);
    };
    if (groups.on_each_host() && write_more) {  // What it writes may need all hosts.
      Group all = groups.all;
      throw_together(all, failure_of(begin), folder_, "cannot save it");
    } else {
      begin();
    }
    if (write_more) {
      write_more(*writer, groups);
    }
    writer->write(*contents_);
    writer->commit(meta_);
  }

  /// Throws on all hosts if one of them has failed, and removes what this host has written.
  void agree(const SavingGroups& groups, const std::string& failure) const {
    Group all = groups.all;
    try {
      throw_together(all, failure, folder_, "cannot save it");
    } catch (const CheckpointError&) {
      if (failure.empty() && groups.is_writer()) {
        std::error_code ignored;  // Its remains are not a checkpoint of the job.
        fs::remove_all(folder_, ignored);
      }
      throw;
    }
  }

  fs::path folder_;
  checkpoint::WriterOptions options_;
  std::shared_ptr<const checkpoint::Contents> contents_;
  nlohmann::json meta_;
  StateSaver::AfterCommit after_;
};

}  // namespace

/// Returns the id of a new save, the same on all ranks, after a check that they have done the same
/// number of updates. Collective.
std::string StateSaver::agree_on_save(const SavingGroups& groups, const fs::path& folder) const {
  std::vector<int64_t> steps;
  for (const Optimizer& optimizer : objects_.optimizers) {
    steps.push_back(optimizer.steps());
  }
  Group group = groups.all;
  const std::vector<nlohmann::json> all =
      gather_object(group, {{"id", group.rank() == 0 ? random_id() : ""}, {"steps", steps}});
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank].at("steps") != all[0].at("steps")) {
      throw CheckpointError(
          folder.string(),
          fmt::format(
              "is not saved; rank {} has done {} updates, rank 0 {}; save after the same update on "
              "all ranks",
              rank,
              fmt::join(all[rank].at("steps").get<std::vector<int64_t>>(), ", "),
              fmt::join(all[0].at("steps").get<std::vector<int64_t>>(), ", ")));
    }
  }
  return all[0].at("id").get<std::string>();
}

/// Collects all parts. A failure on one process fails the save when it is
/// written, so that no process waits for another. Collective.
StateToSave StateSaver::collect(const SavingGroups& groups, const SaveStateOptions& options) {
  const int writers = project_.writers_per_rank();
  StateToSave state{
      .options = options,
      .groups = groups,
      .rank = objects_.context.rank(),
      .writers_per_rank = writers,
      .shares = checkpoint::EvenShares(
          static_cast<size_t>(groups.disk.size()) * static_cast<size_t>(writers))};
  state.meta["processes"] = groups.all.size();
  if (const std::string mesh = mesh_text(objects_.context.mesh.shape.without_data());
      !mesh.empty()) {
    state.meta["mesh"] = mesh;
  }
  step_.scaling().update_if_due();  // Collective, so before anything may throw on one process.
  for (const auto& part : parts_) {
    try {
      part->collect(state);
    } catch (const std::exception& error) {
      state.contents.fail(error.what());
    }
  }
  return state;
}

/// Waits for the device, and throws if an operation of the ranks has failed there: its result must
/// not be saved.
void StateSaver::expect_finished_device() const {
  const at::Device device = objects_.context.device;
  if (device.is_cpu()) {
    return;
  }
  at::accelerator::synchronizeDevice(device.index());
  for (const PreparedModel& model : objects_.models) {
    model.sync->check_alive();
  }
}

/// Waits for the values and, for an asynchronous save, copies them to host memory. A failure fails
/// the save on all processes when it is written. Collective with full tensors.
void StateSaver::finish_contents(StateToSave& state, SaveTimings& timings) {
  const bool async = state.options.async;
  try {
    if (async && objects_.saves_full_state_dict()) {
      // The writing thread cannot unshard. This precedes all that may fail on one process alone.
      const SavingGroups& groups = project_.groups();
      unshard_while(
          objects_, {.all = checkpoint::with_saving_timeout(groups.all), .disk = groups.disk}, [&] {
            state.full_tensors.copy_to_host(*snapshot_);
          });
    }
    expect_finished_device();
    timings.bytes = state.contents.tensor_bytes() + state.full_tensors.tensor_bytes();
    if (async) {
      state.contents.copy_to_host(*snapshot_);
      state.contents.append(std::exchange(state.full_tensors, {}));
    }
  } catch (const std::exception& error) {
    // For instance out of memory: the others must get the failure instead of waiting.
    state.contents = checkpoint::Contents();
    state.contents.fail(error.what());
  }
}

/// Returns whether the main process has all that a checkpoint needs, but for the other processes'
/// random numbers. The same on all processes.
bool StateSaver::may_save_alone(const SaveStateOptions& options, bool is_numbered) const {
  const auto is_at_update = [&] {
    return step_.position().sync_gradients &&
           std::none_of(
               objects_.optimizers.begin(), objects_.optimizers.end(), [](const Optimizer& each) {
                 return each.gradients_are_due();
               });
  };
  const bool follows_rank_0 = objects_.context.options.data_parallel.broadcast_buffers;
  const bool has_all =
      std::all_of(objects_.models.begin(), objects_.models.end(), [&](const PreparedModel& model) {
        // Else each process has its errors of compression, or its buffers.
        return model.parallel->hook_state().iteration == 0 &&
               (follows_rank_0 || model.buffers().empty());
      });
  const bool dispatches =
      std::any_of(objects_.loaders.begin(), objects_.loaders.end(), [](const auto& loader) {
        return loader->dispatches();  // The others may wait for a batch in a group of its own.
      });
  return objects_.context.mesh.shape.is_data_parallel() && !options.async && !is_numbered &&
         !own_files_ && !objects_.uses_zero() && local_sgds_.empty() && !step_.is_joining() &&
         !project_.groups().on_each_host() && objects_.context.group.answers_questions() &&
         has_all && !dispatches && is_at_update();
}

/// Returns the processes that save, all or the main process alone. Collective.
SavingGroups StateSaver::agree_on_processes(
    const fs::path& folder, const SaveStateOptions& options, bool is_numbered) const {
  Group group = objects_.context.group;
  if (!may_save_alone(options, is_numbered) || group.called_by_all()) {
    return project_.groups();
  }
  log_info(fmt::format(
      "the main process saves {} alone: random numbers, own states of registered objects and files "
      "of hooks of the other processes are not in the checkpoint",
      folder.string()));
  return {};
}

void StateSaver::save(
    const fs::path& folder, const SaveStateOptions& options, const AfterCommit& after) {
  step_.refuse_offloaded("save_state");
  if (options.async && own_files_) {
    throw ConfigError(
        "save_state",
        "an engine of a ds_config trains the model, and saves during the call; turn async_save "
        "off");
  }
  const auto began = Clock::now();
  SaveTimings timings;
  wait();
  timings.waited_ms = milliseconds_since(began);
  const SavingGroups groups = agree_on_processes(folder, options, after != nullptr);
  const std::string save_id = agree_on_save(groups, folder);
  if (groups.all.size() == objects_.context.size()) {
    local_sgds_.average();
    replicas_.compare_now("save_state", /*are_averaged=*/true);
  }
  StateToSave state = collect(groups, options);
  state.meta[storage::kSaveIdKey] = save_id;
  finish_contents(state, timings);
  auto contents = std::make_shared<checkpoint::Contents>(std::move(state.contents));
  const CheckpointWrite write(
      folder,
      {.overwrite = options.overwrite, .threads = project_.writers_per_rank()},
      contents,
      std::move(state.meta),
      after);
  if (options.async) {
    const SavingGroups& separate = background_groups();
    snapshot_ = std::move(contents);
    timings.stall_ms = milliseconds_since(began);
    timings.in_flight = true;
    timings_ = timings;
    background_.start([this, &separate, write, began] {
      write.run(separate);
      background_write_ms_ = milliseconds_since(began);
    });
    return;
  }
  write.run(groups, [&](checkpoint::Writer& writer, const SavingGroups& patient) {
    if (objects_.saves_full_state_dict()) {
      unshard_while(objects_, patient, [&] { writer.write(state.full_tensors); });
    }
    if (own_files_) {
      writer.add_own([&](const fs::path& made) { own_files_(made, options); });
    }
  });
  timings.write_ms = milliseconds_since(began) - timings.waited_ms;
  timings.stall_ms = milliseconds_since(began);
  timings_ = timings;
}

/// Returns the writing thread's groups, whose operations do not interleave with the training's.
/// Collective at its first call.
const SavingGroups& StateSaver::background_groups() {
  if (!background_groups_) {
    SavingGroups groups = project_.groups();
    Group all = groups.all.split(0);
    Group disk = groups.disk.split(0);
    background_groups_ = {.all = std::move(all), .disk = std::move(disk)};
  }
  return *background_groups_;
}

void StateSaver::wait() {
  const bool was_in_flight = std::exchange(timings_.in_flight, false);
  background_.wait();
  if (was_in_flight) {
    timings_.write_ms = background_write_ms_ - timings_.stall_ms;
    log_info(fmt::format(
        "saved {:.1f} MB asynchronously: training was blocked for {:.0f} ms{}, writing took {:.0f} "
        "ms",
        static_cast<double>(timings_.bytes) / 1e6,
        timings_.stall_ms,
        timings_.waited_ms >= 1
            ? fmt::format(" ({:.0f} of it by the previous save)", timings_.waited_ms)
            : "",
        timings_.write_ms));
  }
}

void StateSaver::save_model(
    const NamedTensors& tensors,
    const fs::path& folder,
    const checkpoint::SaveModelOptions& options) {
  step_.refuse_offloaded("save_model");
  replicas_.compare_now("save_model");
  const watch::Saving saving;
  const SavingGroups groups = project_.groups().with_saving_timeout();
  const NamedTensors full = full_model_tensors(objects_, tensors, groups.is_writer());
  std::exception_ptr failure;
  unshard_while(objects_, groups, [&] {
    try {
      checkpoint::save_model(full, folder, options);
    } catch (const std::exception&) {
      failure = std::current_exception();
    }
  });
  reports_of_disks(groups, folder, [&] {
    if (failure) {
      std::rethrow_exception(failure);
    }
    return "";
  });
}

}  // namespace lockstep::internal
