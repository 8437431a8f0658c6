// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/checkpointing/checkpointer.h"

#include <cstdio>
#include <exception>
#include <iostream>
#include <string>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "lockstep/accelerator/checkpointing/parts/parts.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/checkpoint/background_save.h"
#include "lockstep/comm/call_scope.h"

namespace lockstep::internal {

namespace fs = std::filesystem;

Checkpointer::Checkpointer(
    PreparedObjects& objects,
    TrainingStep& step,
    FiniteGuard& finite,
    const ActiveLoaders& active,
    EpochCounter& epochs,
    LocalSgdScopes& local_sgds,
    Gradients& gradients,
    ReplicaCheck& replicas,
    std::function<void()> end_training)
    : objects_(objects),
      step_(step),
      end_training_(std::move(end_training)),
      project_(objects.context),
      preemption_(objects.context),
      hooks_(std::make_shared<ProgramHooks>(objects)),
      loader_(objects, local_sgds, gradients, project_, parts_),
      saver_(objects, step, local_sgds, replicas, project_, parts_),
      resume_pending_(objects.context.resume) {
  // A load applies them in this order: rates after optimizers, unused gradients after parameters.
  parts_.push_back(hooks_);
  parts_.push_back(models_part(objects));
  parts_.push_back(own_buffers_part(objects));
  parts_.push_back(optimizers_part(objects, local_sgds));
  parts_.push_back(local_sgd_steps_part(local_sgds));
  parts_.push_back(comm_hooks_part(objects));
  parts_.push_back(loaders_part(objects, active, epochs));
  parts_.push_back(epochs_part(objects, epochs));
  parts_.push_back(random_states_part(objects.context.device));
  parts_.push_back(loss_scale_part(step));
  parts_.push_back(schedulers_part(objects));
  parts_.push_back(accumulation_part(objects, step, finite));
  parts_.push_back(registered_);
}

void Checkpointer::save(const fs::path& folder, const SaveStateOptions& options) {
  const comm::CallScope call("save_state");
  const LoopPartScope scope(step_, tracking::LoopPart::kCheckpoint);
  checkpoint::save_despite_failure(
      [this] { saver_.wait(); },
      [&] {
        saver_.save(folder, options);
        return folder;
      });
}

fs::path Checkpointer::save(const SaveStateOptions& options) {
  const LoopPartScope scope(step_, tracking::LoopPart::kCheckpoint);
  project_.checkpoints();  // Throws without a project_dir.
  if (!objects_.context.options.project_config.automatic_checkpoint_naming) {
    throw ConfigError(
        "save_state",
        "automatic_checkpoint_naming is off; pass the folder to save to, or turn it on");
  }
  return checkpoint::save_despite_failure(
      [this] { saver_.wait(); }, [&] { return save_numbered(options); });
}

fs::path Checkpointer::save_numbered(const SaveStateOptions& options) {
  const comm::CallScope call("save_state");
  project_.checkpoints();  // Throws without a project_dir.
  saver_.wait();           // Its number is taken, though its folder may not exist yet.
  const fs::path folder = project_.next_checkpoint();
  saver_.save(folder, options, project_.finish_save(folder));
  return folder;
}

void Checkpointer::load(const fs::path& folder, const LoadStateOptions& options) {
  const comm::CallScope call("load_state");
  const LoopPartScope scope(step_, tracking::LoopPart::kCheckpoint);
  step_.refuse_offloaded("load_state");
  saver_.wait();
  if (resume_pending_) {
    log_warning(fmt::format(
        "the launcher requested a resume, but the program loads {}; call resume_latest() instead "
        "if a checkpoint exists",
        folder.string()));
  }
  loaded_ = true;
  preemption_.restart();
  const auto steps = [this] {
    return objects_.optimizers.empty() ? int64_t{0} : objects_.optimizers.front().steps();
  };
  const int64_t steps_before = steps();
  try {
    loader_.load(folder, options);
  } catch (...) {
    if (steps() != steps_before) {  // The optimizers are loaded, and a later object failed.
      steps_at_save_ = steps();
    }
    throw;
  }
  if (options.optimizers && !options.models_only && !objects_.optimizers.empty()) {
    steps_at_save_ = steps();
  }
}

std::optional<fs::path> Checkpointer::resume_latest() {
  saver_.wait();
  resume_pending_ = false;
  loaded_ = true;
  std::optional<fs::path> newest = project_.newest_checkpoint(storage::Verify::kSizes);
  if (!newest) {
    return newest;
  }
  try {
    load(*newest, {});
    return newest;
  } catch (const CheckpointError& error) {
    // Damaged, or not for this program? Only damage is a reason to take an older one.
    std::optional<fs::path> undamaged = project_.newest_checkpoint(storage::Verify::kFull);
    if (undamaged == newest) {
      throw;
    }
    log_warning(fmt::format("skipped {}: {}", newest->string(), error.what()));
    if (undamaged) {
      load(*undamaged, {});
    }
    return undamaged;
  }
}

fs::path Checkpointer::load_latest() {
  const std::optional<fs::path> loaded = resume_latest();
  if (!loaded) {
    throw CheckpointError(
        project_.checkpoints().string(),
        "holds no complete checkpoint; call resume_latest() to start from the beginning if there "
        "is none");
  }
  return *loaded;
}

void Checkpointer::resume_if_requested(bool in_epochs) {
  if (!std::exchange(resume_pending_, false) || loaded_) {
    return;
  }
  const std::optional<fs::path> newest = resume_latest();
  if (newest && !in_epochs && !objects_.loaders.empty() && objects_.loaders.front()->epoch() > 0) {
    log_warning(
        "the job resumed within a loop that counts epochs from its beginning; use for (epoch : "
        "accelerator.epochs(n)), which continues at the saved epoch");
  }
  log_info(
      newest ? fmt::format("resumed from {}", newest->string())
             : "no checkpoint exists to resume from: training starts from the beginning");
}

void Checkpointer::between_batches() {
  if (step_.is_joining() || !step_.sync_gradients()) {
    return;  // Some processes may have no more batches; or within a group, which ends soon.
  }
  save_if_due();
  if (preemption_.is_agreed()) {
    exit_preempted();
  }
}

void Checkpointer::save_if_due() {
  const ProjectConfiguration& project = objects_.context.options.project_config;
  if (project.checkpointing_steps == 0 || objects_.optimizers.empty()) {
    return;
  }
  const int64_t steps = objects_.optimizers.front().steps();
  if (steps / project.checkpointing_steps > steps_at_save_ / project.checkpointing_steps) {
    steps_at_save_ = steps;
    save(SaveStateOptions{.async = project.async_checkpointing});
  }
}

void Checkpointer::exit_preempted() {
  const int signal = preemption_.signal();
  try {
    saver_.wait();
  } catch (const std::exception& error) {
    log_error(std::string("the previous save failed: ") + error.what());
  }
  const fs::path folder = save_numbered({});
  log_info(fmt::format(
      "preempted{}: saved to {}, exiting with code {}; continue with lockstep launch --resume",
      signal == 0 ? "" : fmt::format(" by signal {}", signal),
      folder.string(),
      static_cast<int>(kExitPreempted)));
  preemption_.clear();
  if (objects_.context.options.on_preempted) {
    objects_.context.options.on_preempted(folder);
  }
  end_training_();
  std::cout.flush();
  std::fflush(nullptr);
  // Unwinding would pass through the program's loop, and static destructors need threads that the
  // other processes may have ended.
  ::_exit(kExitPreempted);
}

}  // namespace lockstep::internal
