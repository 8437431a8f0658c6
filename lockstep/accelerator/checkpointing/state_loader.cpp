// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/checkpointing/state_loader.h"

#include <optional>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <torch/optim/optimizer.h>

#include "lockstep/accelerator/training_state/import_accelerate.h"
#include "lockstep/accelerator/training_state/sharded_state.h"
#include "lockstep/accelerator/values/operations.h"
#include "lockstep/base/error.h"
#include "lockstep/base/host/machine.h"
#include "lockstep/base/log.h"
#include "lockstep/checkpoint/weights/load_model.h"
#include "lockstep/comm/fail_together.h"
#include "lockstep/optim/state/optimizer_state.h"
#include "lockstep/storage/deepspeed_folder.h"
#include "lockstep/storage/safetensors/safetensors_header.h"
#include "lockstep/storage/write/temp_folder.h"

namespace lockstep::internal {
namespace {

namespace fs = std::filesystem;

/// Returns "5", or "5, 6" for two optimizers.
std::string updates_text(const nlohmann::json& steps) {
  return steps.empty() ? "no"
                       : fmt::format("{}", fmt::join(steps.get<std::vector<int64_t>>(), ", "));
}

/// Throws CheckpointError for a checkpoint of single hosts that this job cannot load.
void expect_loadable(const StateToLoad& state, const PreparedObjects& objects) {
  if (state.is_resharded() && state.reader.world_size() != state.saved_by()) {
    throw CheckpointError(
        state.reader.path().string(),
        fmt::format(
            "is one host's part of a save_on_each_node checkpoint by {} processes; this job has "
            "{}; start the same processes on the same hosts",
            state.saved_by(),
            state.processes));
  }
  if (!objects.sharding &&
      (is_in_parts(state.reader, "model") || is_in_parts(state.reader, "optimizer"))) {
    throw CheckpointError(
        state.reader.path().string(),
        "is one host's part of a state that ZeRO sharded; load it with the stage, hosts and ranks "
        "that saved it");
  }
}

ImportTarget import_target(const PreparedObjects& objects, const ParameterName& names) {
  ImportTarget target;
  target.models = objects.models.size();
  for (const Optimizer& optimizer : objects.optimizers) {
    auto& wanted = target.optimizers.emplace_back();
    wanted.settings = optimizer_settings(optimizer.inner());
    for (const auto& group : optimizer.inner().param_groups()) {
      auto& of_group = wanted.parameters.emplace_back();
      for (const at::Tensor& parameter : group.params()) {
        of_group.push_back(names(parameter));
      }
    }
  }
  for (const Scheduler& scheduler : objects.schedulers) {
    target.schedulers.push_back(scheduler.state());
  }
  return target;
}

}  // namespace

void StateLoader::load(const fs::path& folder, const LoadStateOptions& options) {
  const SavingGroups& groups = project_.groups();
  if (groups.is_writer() && !fs::exists(folder)) {
    // Completes the rename of a save that was interrupted.
    storage::remove_stale(fs::absolute(folder).parent_path());
  }
  Group disk = groups.disk;
  disk.barrier();
  Checked checked;
  std::string failure = failure_of([&] { checked = check(folder, options); });
  if (!failure.empty() && groups.on_each_host()) {
    failure = fmt::format("on host {}: {}", describe_machine().system.host, failure);
  }
  Group all = groups.all;
  throw_together(all, failure, folder, "cannot load it");
  expect_same_save(folder, checked);
  failure = failure_of([&] {
    gradients_.clear();  // Those of a group that the loaded state does not contain.
    local_sgds_.forget_restored();
    for (const auto& step : checked.apply) {
      step();  // May only throw for custom objects, which are not checked before.
    }
  });
  throw_together(all, failure, folder, "failed after a part of it was loaded");
}

StateLoader::Checked StateLoader::check(const fs::path& folder, const LoadStateOptions& options) {
  if (const auto deepspeeds = storage::deepspeed_checkpoint(folder)) {
    throw CheckpointError(*deepspeeds);  // Also one that Accelerate has written with DeepSpeed.
  }
  if (!is_accelerate_folder(folder)) {
    return check_saved(folder, options);
  }
  if (options.models_only || !options.training_loop || !options.strict || !options.optimizers ||
      !options.schedulers) {
    throw ConfigError(
        "load_state",
        fmt::format(
            "{} was saved by Accelerate, and can only be loaded in full; omit the options, or load "
            "its weights with load_checkpoint_in_model",
            folder.string()));
  }
  return check_import(folder);
}

StateLoader::Checked StateLoader::check_saved(
    const fs::path& folder, const LoadStateOptions& options) {
  checkpoint::Reader reader(folder);
  const RunContext& context = objects_.context;
  // The processes of a host read the same files: each verifies a share, and all get its findings.
  StateToLoad state{
      .reader = reader,
      .saved = storage::read_saved_meta(reader),
      .share =
          {.index = context.world.local_rank,
           .count = context.world.local_size,
           .unverified = !options.verify},
      .options = options,
      .rank = context.rank(),
      .processes = context.size(),
      .mesh = mesh_text(context.mesh.shape.without_data()),
      .replica = context.mesh.replicas.rank(),
      .writers_per_rank = project_.writers_per_rank()};
  expect_loadable(state, objects_);
  for (const auto& part : parts_) {
    if (part->is_loaded(state)) {
      part->check(state);
    }
  }
  if (state.is_resharded()) {
    log_info(fmt::format(
        "{} was saved by {} process{} and continues with {}",
        folder.string(),
        state.saved_by(),
        state.saved_by() == 1 ? "" : "es",
        context.size()));
  }
  return {
      .id = state.saved.save_id,
      .steps = state.saved.optimizer_steps,
      .verified = options.verify,
      .apply = std::move(state.apply)};
}

/// Checks a folder of Accelerate, except for its pickles, which are not read.
StateLoader::Checked StateLoader::check_import(const fs::path& folder) {
  objects_.refuse_zero(
      "load_state",
      "Accelerate saved full parameters, but each process of this job has a shard; load the folder "
      "once without ZeRO, and call save_state(), whose checkpoint any stage can load");
  const ParameterName names = objects_.parameter_names("load_state");
  const ImportedState imported = import_accelerate(folder, import_target(objects_, names));
  Checked checked;
  for (size_t i = 0; i < imported.models.size(); ++i) {
    NamedTensors all = objects_.models[i].parameters();
    const NamedTensors buffers = objects_.models[i].buffers();
    all.insert(all.end(), buffers.begin(), buffers.end());
    checked.apply.push_back(checkpoint::check_checkpoint_in_model(all, imported.models[i]).apply);
  }
  for (size_t i = 0; i < imported.optimizers.size(); ++i) {
    const auto& saved = imported.optimizers[i];
    checked.steps.push_back(saved.steps);
    checked.apply.push_back(check_optimizer(
        objects_.optimizers[i].inner(),
        names,
        saved.tensors,
        saved.settings,
        saved.path,
        saved.settings_path));
    checked.apply.emplace_back(
        [&objects = objects_, i, steps = saved.steps] { objects.optimizers[i].set_steps(steps); });
  }
  for (size_t i = 0; i < imported.schedulers.size(); ++i) {
    checked.apply.push_back(
        objects_.schedulers[i].check_state(imported.schedulers[i], folder.string()));
  }
  log_warning(fmt::format(
      "{} was saved by Accelerate: models, optimizers and schedulers continue; {} start from the "
      "beginning",
      folder.string(),
      fmt::join(imported.not_imported, ", ")));
  // Accelerate gives a save no id. On one host the folder's canonical path identifies it.
  std::error_code error;
  checked.id = objects_.context.world.on_one_host()
                   ? storage::in_quotes(fs::canonical(folder, error).string())
                   : "by Accelerate";
  return checked;
}

/// Throws CheckpointError on all ranks if they would load different checkpoints. Collective.
void StateLoader::expect_same_save(const fs::path& folder, const Checked& checked) {
  const nlohmann::json own{
      {"folder", storage::in_quotes(folder.string())},
      {"id", checked.id},
      {"steps", checked.steps},
      {"verified", checked.verified}};
  Group group = project_.groups().all;
  const std::vector<nlohmann::json> all = gather_object(group, own);
  const nlohmann::json& first = all.front();
  for (size_t rank = 1; rank < all.size(); ++rank) {
    const nlohmann::json& other = all[rank];
    if (other.at("id") != first.at("id") || other.at("steps") != first.at("steps")) {
      throw CheckpointError(
          folder.string(),
          fmt::format(
              "ranks would load different checkpoints: rank {} has {} ({} updates), rank 0 has {} "
              "({} updates); give all ranks the same checkpoint",
              rank,
              other.at("folder").get<std::string>(),
              updates_text(other.at("steps")),
              first.at("folder").get<std::string>(),
              updates_text(first.at("steps"))));
    }
    if (other.at("verified") != first.at("verified")) {
      throw ConfigError(
          "load_state",
          fmt::format(
              "the ranks of a host verify the files together; got verify = {} on rank {} and {} on "
              "rank 0, expected the same on all",
              other.at("verified").get<bool>(),
              rank,
              first.at("verified").get<bool>()));
    }
  }
}

}  // namespace lockstep::internal
