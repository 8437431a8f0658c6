// SPDX-License-Identifier: Apache-2.0
// Writing what accelerator_save.cpp has collected, and weights alone.
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <random>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <ATen/DeviceAccelerator.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/accelerator_state.h"
#include "lockstep/accelerator/training_state/training_state.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/rank.h"
#include "lockstep/checkpoint/background_save.h"
#include "lockstep/checkpoint/weights/save_model.h"
#include "lockstep/checkpoint/writer.h"
#include "lockstep/watch/flight_recorder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/// Not from torch's generators, whose numbers are the training's.
std::string random_id() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

}  // namespace

/// The id of a new save, the same for all ranks, once it is known that they have done equally many
/// updates. Collective.
std::string Accelerator::agree_on_save(const fs::path& folder) {
  std::vector<int64_t> steps;
  for (const Optimizer& optimizer : state_->optimizers) {
    steps.push_back(optimizer.steps());
  }
  const std::vector<nlohmann::json> all =
      gather_object({{"id", is_main_process() ? random_id() : ""}, {"steps", steps}});
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank].at("steps") != all[0].at("steps")) {
      throw CheckpointError(
          folder.string(),
          fmt::format(
              "is not saved; rank {} has done {} updates, expected {}, as rank 0; save after the "
              "same one on all",
              rank,
              fmt::join(all[rank].at("steps").get<std::vector<int64_t>>(), ", "),
              fmt::join(all[0].at("steps").get<std::vector<int64_t>>(), ", ")));
    }
  }
  return all[0].at("id").get<std::string>();
}

/// The device has done what training left to it, and done it well: what ranks computed together of
/// an operation that failed is not to be saved.
void Accelerator::expect_finished_device() const {
  if (device().is_cpu()) {
    return;
  }
  at::accelerator::synchronizeDevice(device().index());
  for (const State::Model& model : state_->models) {
    model.sync->check_alive();
  }
}

/// Runs `body` on the main process, which may touch parameters of stage 3 there, one after the
/// other; the other processes help to bring them, and return when it is done. Collective.
void Accelerator::unshard_while(const SavingGroups& groups, const std::function<void()>& body) {
  zero::ParamCoordinator* const coordinator =
      state_->is_sharded_param() ? state_->sharding->coordinator() : nullptr;
  const zero::ExactValues exact(coordinator);
  const auto until_all_are_done = [&] {
    if (coordinator != nullptr) {
      coordinator->wait_for_all(0, groups.all);
    }
  };
  if (groups.disk.rank() == 0) {
    try {
      body();
    } catch (const std::exception&) {
      until_all_are_done();
      throw;
    }
  }
  until_all_are_done();
}

void Accelerator::save(
    const fs::path& folder, const SaveStateOptions& options, const AfterCommit& after) {
  State& state = *state_;
  refuse_offloaded("save_state");
  const auto began = Clock::now();
  SaveTimings timings;
  wait_for_save();
  timings.waited_ms = milliseconds_since(began);
  const std::string save_id = agree_on_save(folder);
  for (const auto& [model, local_sgd] : state.local_sgds) {
    local_sgd->average();
  }
  nlohmann::json meta;
  checkpoint::Contents whole;
  auto contents = std::make_shared<checkpoint::Contents>(collect_state(whole, meta, options));
  meta[storage::kSaveIdKey] = save_id;
  try {
    if (state.saves_whole() && options.async) {
      // The writing thread cannot; and before anything may fail on one process alone.
      unshard_while({.all = checkpoint::patient(state.group), .disk = *state.saving}, [&] {
        whole.copy_to_host(*state.snapshot);
      });
    }
    expect_finished_device();
    timings.bytes = contents->tensor_bytes() + whole.tensor_bytes();
    if (options.async) {
      contents->copy_to_host(*state.snapshot);
      contents->append(std::exchange(whole, {}));
    }
  } catch (const std::exception& error) {
    // Out of memory, say: the others are to hear of it instead of waiting.
    contents = std::make_shared<checkpoint::Contents>();
    contents->fail(error.what());
  }
  const auto write =
      [folder,
       contents,
       meta,
       after,
       overwrite = options.overwrite,
       threads = state.writers_per_rank](
          const SavingGroups& given,
          const std::function<void(checkpoint::Writer&, const SavingGroups&)>& first = nullptr) {
        // Of what follows, too: an old checkpoint may take long to remove.
        const watch::Saving saving;
        const SavingGroups groups = {
            .all = checkpoint::patient(given.all), .disk = checkpoint::patient(given.disk)};
        std::string failure;
        try {
          if (overwrite && groups.disk.size() != groups.all.size() && fs::exists(folder)) {
            throw CheckpointError(
                folder.string(),
                "is there already, and with a disk for each host nothing is overwritten, since one "
                "of them may fail; save under another name, or remove it on all hosts first");
          }
          checkpoint::Writer writer(
              groups.disk, folder, {.overwrite = overwrite, .threads = threads});
          if (first) {
            first(writer, groups);
          }
          writer.write(*contents);
          writer.commit(meta);
        } catch (const CheckpointError& error) {
          failure = without_rank_suffix(error.what());
          if (groups.disk.size() == groups.all.size()) {
            throw;  // All were told the same.
          }
        }
        if (groups.disk.size() != groups.all.size()) {
          Group all = groups.all;
          try {
            throw_together(all, failure, folder, "cannot save it");
          } catch (const CheckpointError&) {
            if (failure.empty() && groups.disk.rank() == 0) {
              std::error_code ignored;  // What is left of it is no checkpoint of the job's.
              fs::remove_all(folder, ignored);
            }
            throw;
          }
        }
        if (after) {
          after(groups);
        }
      };
  if (options.async) {
    if (!state.background_groups) {
      // Of its own, so that what it says does not get between the training's collectives.
      state.background_groups.emplace();
      state.background_groups->all = state.group.split(0);
      state.background_groups->disk = state.saving->split(0);
    }
    state.snapshot = std::move(contents);
    timings.stall_ms = milliseconds_since(began);
    timings.in_flight = true;
    state.timings = timings;
    state.background.start([&state, write, began] {
      write(*state.background_groups);
      state.background_write_ms = milliseconds_since(began);
    });
    return;
  }
  write(
      {.all = state.group, .disk = *state.saving},
      [&](checkpoint::Writer& writer, const SavingGroups& groups) {
        if (state.saves_whole()) {
          unshard_while(groups, [&] { writer.write(whole); });
        }
      });
  timings.write_ms = milliseconds_since(began) - timings.waited_ms;
  timings.stall_ms = milliseconds_since(began);
  state.timings = timings;
}

void Accelerator::wait_for_save() {
  State& state = *state_;
  const bool was_in_flight = state.timings.in_flight;
  state.timings.in_flight = false;
  state.background.wait();
  if (was_in_flight) {
    state.timings.write_ms = state.background_write_ms - state.timings.stall_ms;
    log_info(fmt::format(
        "saved {:.1f} MB asynchronously: training stood still for {:.0f} ms{}, writing took {:.0f} "
        "ms",
        static_cast<double>(state.timings.bytes) / 1e6,
        state.timings.stall_ms,
        state.timings.waited_ms >= 1
            ? fmt::format(", {:.0f} of it for the save before", state.timings.waited_ms)
            : "",
        state.timings.write_ms));
  }
}

const SaveTimings& Accelerator::last_save() const {
  return state_->timings;
}

void Accelerator::save_state(const fs::path& folder, const SaveStateOptions& options) {
  checkpoint::save_despite_failure(
      [this] { wait_for_save(); },
      [&] {
        save(folder, options, nullptr);
        return folder;
      });
}

void Accelerator::save_model_tensors(
    const NamedTensors& tensors,
    const fs::path& folder,
    const checkpoint::SaveModelOptions& options) {
  refuse_offloaded("save_model");
  const watch::Saving saving;
  const SavingGroups groups = {
      .all = checkpoint::patient(state_->group), .disk = checkpoint::patient(*state_->saving)};
  std::exception_ptr failure;
  unshard_while(groups, [&] {
    try {
      checkpoint::save_model(tensors, folder, options);
    } catch (const std::exception&) {
      failure = std::current_exception();
    }
  });
  told_by_disks(groups, folder, [&] {
    if (failure) {
      std::rethrow_exception(failure);
    }
    return "";
  });
}

}  // namespace lockstep
