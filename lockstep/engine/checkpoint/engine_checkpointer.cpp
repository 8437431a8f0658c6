// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/checkpoint/engine_checkpointer.h"

#include <cstdint>
#include <memory>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/accelerator/internals.h"
#include "lockstep/accelerator/training_state/non_finite_json.h"
#include "lockstep/accelerator/values/operations.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/call_scope.h"
#include "lockstep/comm/fail_together.h"
#include "lockstep/storage/deepspeed_folder.h"
#include "lockstep/storage/safetensors/saved_values.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEngineFile = "engine.json";
// Keys of engine.json that older checkpoints do not have.
constexpr const char* kAccumulationSteps = "gradient_accumulation_steps";
constexpr const char* kWithinUpdate = "within_update";
constexpr const char* kAveraged = "averaged";

}  // namespace

EngineCheckpointer::EngineCheckpointer(
    EngineContext& context, MicroStepMeter& meter, EngineBackward& backward, EngineUpdate& update)
    : context_(context),
      meter_(meter),
      backward_(backward),
      update_(update),
      latest_(*context.accelerator, context.saves_on_each_host) {
  internal::AcceleratorInternals::add_checkpoint_part(
      *context.accelerator, std::make_shared<Part>(*this));
}

// --- saving

fs::path EngineCheckpointer::save(
    const fs::path& save_dir,
    const std::optional<CheckpointTag>& tag,
    const SaveCheckpointOptions& options) {
  if (!options.client_state.is_null() && !options.client_sd.is_null()) {
    throw ConfigError(
        "save_checkpoint", "client_sd is another name of client_state; give only one");
  }
  Accelerator& accelerator = *context_.accelerator;
  const std::string name = tag_of_rank_0(
      tag ? tag->text() : fmt::format("global_step{}", context_.counter.counts().global_steps));
  check_tag(name);
  client_state_ = internal::without_non_finite(
      options.client_state.is_null() ? options.client_sd : options.client_state);
  if (latest_.is_on_each_host()) {
    client_state_ = accelerator.broadcast_object(client_state_);  // Each host saves a copy.
  }
  const fs::path folder = save_dir / name;
  accelerator.save_state(
      folder, {.overwrite = true, .exclude_frozen_parameters = options.exclude_frozen_parameters});
  client_state_ = nullptr;
  if (options.save_latest) {
    latest_.write(save_dir, name);
  } else {
    accelerator.wait_for_everyone();
  }
  return folder;
}

/// Returns rank 0's tag, if tag_validation allows the others. Collective.
std::string EngineCheckpointer::tag_of_rank_0(const std::string& own_tag) {
  std::vector<std::string> tags;
  bool differ = false;
  Group group = context_.accelerator->group();
  for (const nlohmann::json& tag : gather_object(group, own_tag)) {
    tags.push_back(tag.get<std::string>());
    differ = differ || tags.back() != tags.front();
  }
  const ds_config::TagValidation validation = context_.config.tag_validation.value;
  if (differ && validation != ds_config::TagValidation::kIgnore) {
    const std::string what = fmt::format(
        "ranks save under different tags: {}; derive the tag from a value that all ranks share",
        fmt::join(tags, ", "));
    if (validation == ds_config::TagValidation::kFail) {
      throw ConfigError("save_checkpoint", what);
    }
    log_warning(what + "; the tag of rank 0 is used");
  }
  return tags.front();
}

nlohmann::json EngineCheckpointer::engine_state() const {
  const TrainingCounts& counts = context_.counter.counts();
  const auto& scale = context_.dynamic_loss_scale;
  return {
      {"global_steps", counts.global_steps},
      {"global_samples", counts.global_samples},
      {"skipped_steps", counts.skipped_steps},
      {"micro_steps", counts.micro_steps},
      {kAccumulationSteps, context_.counter.gradient_accumulation_steps()},
      {kWithinUpdate, context_.has_optimizer() && context_.optimizer.gradients_are_due()},
      {kAveraged, backward_.gradients_are_averaged()},
      {"loss_scale", scale ? scale->state() : nlohmann::json(nullptr)},
      {"client_state", client_state_}};
}

// --- the part of the checkpoint

void EngineCheckpointer::Part::collect(internal::StateToSave& state) const {
  if (engine_.latest_.is_writer()) {
    state.contents.add_json(kEngineFile, engine_.engine_state());
  }
}

void EngineCheckpointer::Part::check(internal::StateToLoad& state) const {
  if (!state.reader.has(kEngineFile)) {
    throw CheckpointError(
        state.reader.path().string(),
        "was not saved by an engine; load it with Accelerator::load_state");
  }
  // Applied by load(), after everything else.
  engine_.loaded_state_ = state.reader.json(kEngineFile);
  if (state.loads_optimizers()) {
    engine_.check_accumulation(state.path(kEngineFile));
  }
}

// --- loading

LoadedCheckpoint EngineCheckpointer::load(
    const fs::path& load_dir,
    const std::optional<CheckpointTag>& tag,
    const LoadCheckpointOptions& options) {
  const comm::CallScope call("load_checkpoint");
  const std::string name = tag ? tag->text() : latest_.read(load_dir);
  if (name.empty()) {
    const auto deepspeeds = storage::deepspeed_checkpoint(load_dir);
    if (const auto failed =
            first_failure(context_.accelerator->group(), deepspeeds ? deepspeeds->what() : "")) {
      throw deepspeeds
          ? *deepspeeds
          : CheckpointError(
                load_dir.string(), fmt::format("rank {}: {}", failed->rank, failed->why));
    }
    log_warning(fmt::format(
        "{} has no file latest; nothing is loaded; give a tag, or start from the beginning",
        load_dir.string()));
    return {};
  }
  check_tag(name);
  const fs::path folder = load_dir / name;
  try {
    load_accelerator_state(folder, options);
  } catch (const CheckpointError&) {
    std::error_code error;
    if (!fs::exists(folder, error)) {
      throw missing_tag_error(load_dir, name);
    }
    throw;
  }
  if (!options.load_module_only) {
    load_engine_state(folder / kEngineFile, options.load_optimizer_states);
    if (options.load_optimizer_states) {
      restore_loss_scale();
    }
    meter_.restart_throughput();
  }
  update_.reset_grad_norm();
  meter_.reset_loss();
  return {folder, internal::with_non_finite(loaded_state_.at("client_state"))};
}

void EngineCheckpointer::load_accelerator_state(
    const fs::path& folder, const LoadCheckpointOptions& options) {
  context_.accelerator->load_state(
      folder,
      {.strict = options.load_module_strict,
       .optimizers = options.load_optimizer_states,
       .schedulers = options.load_lr_scheduler_states,
       .may_lack_schedulers = true,
       .may_lack_positions = true,
       .models_only = options.load_module_only});
}

/// Throws CheckpointError for invalid counters, and for an unfinished update with another number of
/// micro-steps: its gradients were divided by that number.
void EngineCheckpointer::check_accumulation(const std::string& path) const {
  if (!loaded_state_.is_object()) {
    return;  // load_engine_state reports it.
  }
  const storage::SavedValues values(loaded_state_, path);
  for (const char* key : {"global_steps", "global_samples", "skipped_steps", "micro_steps"}) {
    values.count(key);
  }
  const nlohmann::json configured = context_.counter.gradient_accumulation_steps();
  const nlohmann::json saved = loaded_state_.value(kAccumulationSteps, configured);
  if (saved != configured &&
      loaded_state_.value(kWithinUpdate, nlohmann::json(false)) == nlohmann::json(true)) {
    throw CheckpointError(
        path,
        fmt::format(
            "was saved within an update of {0} micro-steps; this engine has updates of {1}; load "
            "it with gradient_accumulation_steps {0}, or with load_optimizer_states = false, or "
            "save at the end of an update",
            saved.dump(),
            configured.dump()));
  }
}

void EngineCheckpointer::load_engine_state(const std::string& path, bool with_optimizer) {
  const nlohmann::json& saved = loaded_state_;
  try {
    TrainingCounts counts{
        .micro_steps = saved.at("micro_steps").get<int64_t>(),
        .global_steps = saved.at("global_steps").get<int64_t>(),
        .global_samples = saved.at("global_samples").get<int64_t>(),
        .skipped_steps = saved.at("skipped_steps").get<int64_t>()};
    const int64_t accumulation_steps = context_.counter.gradient_accumulation_steps();
    // Older checkpoints without these keys are within an update if they contain gradients.
    const bool has_keys = saved.contains(kAccumulationSteps);
    const bool within = has_keys
                            ? saved.value(kWithinUpdate, false)
                            : context_.has_optimizer() && context_.optimizer.gradients_are_due();
    const bool same_count = has_keys ? saved.at(kAccumulationSteps) == accumulation_steps : within;
    const bool averaged = saved.value(kAveraged, true) || !(with_optimizer && within);
    const auto& scale = context_.dynamic_loss_scale;
    if (with_optimizer && scale && !saved.at("loss_scale").is_null()) {
      scale->load_state(saved.at("loss_scale"));
    }
    backward_.set_gradients_averaged(averaged);
    // With another number of micro-steps, or without the saved gradients, a new update begins.
    const bool continues_update = same_count && (with_optimizer || !within);
    if (!continues_update) {
      counts.micro_steps = counts.global_steps * accumulation_steps;
    }
    context_.counter.set_counts(counts);
  } catch (const std::exception& error) {
    throw CheckpointError(path, fmt::format("is not an engine's state: {}", error.what()));
  }
}

/// Sets the scaler to this run's loss scale. The saved one may be of another kind, fixed or
/// dynamic.
void EngineCheckpointer::restore_loss_scale() {
  GradScaler* const scaler = context_.accelerator->scaler();
  if (scaler == nullptr) {
    return;
  }
  const double scale = context_.dynamic_loss_scale ? context_.dynamic_loss_scale->scale()
                                                   : context_.config.fp16.loss_scale.value;
  if (static_cast<float>(scaler->get_scale()) == static_cast<float>(scale)) {
    return;
  }
  nlohmann::json state = scaler->state();
  state["scale"] = scale;
  scaler->load_state(state);
}

}  // namespace lockstep
