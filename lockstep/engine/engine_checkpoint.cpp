// SPDX-License-Identifier: Apache-2.0
// What an engine saves, and goes on from.
#include <fstream>
#include <sstream>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/accelerator/state_hooks.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/new_file.h"
#include "lockstep/engine/engine_core.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEngineFile = "engine.json";
constexpr const char* kLatest = "latest";

void check_tag(const std::string& tag) {
  if (tag.empty() || tag == "." || tag == ".." || tag == kLatest ||
      tag.find('/') != std::string::npos || tag.find('\n') != std::string::npos) {
    throw ConfigError(
        "checkpoint",
        fmt::format("a tag is the name of a folder; got '{}', try \"global_step100\"", tag));
  }
}

std::optional<std::string> latest_in(const fs::path& folder) {
  std::ifstream file(folder / kLatest);
  std::string tag;
  if (!file || !std::getline(file, tag)) {
    return std::nullopt;
  }
  return tag;
}

}  // namespace

void EngineCore::register_hooks() {
  remove_hooks_.push_back(
      accelerator_->register_save_state_pre_hook([this](StateBeingSaved& saved) {
        if (accelerator_->is_main_process()) {
          saved.contents.add_json(kEngineFile, state());
        }
      }));
  remove_hooks_.push_back(
      accelerator_->register_load_state_pre_hook([this](StateBeingLoaded& loaded) {
        if (!loaded.checkpoint.has(kEngineFile)) {
          throw CheckpointError(
              loaded.checkpoint.path().string(),
              "was not saved by an engine; load it with Accelerator::load_state");
        }
        loaded_state_ = loaded.checkpoint.json(kEngineFile);  // Counts once all else is found good.
      }));
}

nlohmann::json EngineCore::state() const {
  return {
      {"global_steps", global_steps_},
      {"global_samples", global_samples_},
      {"skipped_steps", skipped_steps_},
      {"micro_steps", micro_steps_},
      {"loss_scale", loss_scale_ ? loss_scale_->state() : nlohmann::json(nullptr)},
      {"client_state", client_state_}};
}

void EngineCore::load_state(const nlohmann::json& saved, const std::string& path, bool with_scale) {
  try {
    const auto global_steps = saved.at("global_steps").get<int64_t>();
    const auto global_samples = saved.at("global_samples").get<int64_t>();
    const auto skipped_steps = saved.at("skipped_steps").get<int64_t>();
    const auto micro_steps = saved.at("micro_steps").get<int64_t>();
    if (with_scale && loss_scale_ && !saved.at("loss_scale").is_null()) {
      loss_scale_->load_state(saved.at("loss_scale"));
    }
    global_steps_ = global_steps;
    global_samples_ = global_samples;
    skipped_steps_ = skipped_steps;
    micro_steps_ = micro_steps;
  } catch (const std::exception& error) {
    throw CheckpointError(path, fmt::format("is not an engine's state: {}", error.what()));
  }
}

/// Rank 0's, once tag_validation has had its say.
std::string EngineCore::agreed_tag(const std::string& mine) {
  std::vector<std::string> tags;
  bool differ = false;
  for (const nlohmann::json& tag : accelerator_->gather_object(mine)) {
    tags.push_back(tag.get<std::string>());
    differ = differ || tags.back() != tags.front();
  }
  if (differ && config_.tag_validation.value != ds_config::TagValidation::kIgnore) {
    const std::string told = fmt::format(
        "ranks save under different tags: {}; derive the tag from what all have alike",
        fmt::join(tags, ", "));
    if (config_.tag_validation.value == ds_config::TagValidation::kFail) {
      throw ConfigError("save_checkpoint", told);
    }
    log_warning(told + "; rank 0's is used");
  }
  return tags.front();
}

fs::path EngineCore::save_checkpoint(
    const fs::path& save_dir,
    std::optional<CheckpointTag> tag,
    const SaveCheckpointOptions& options) {
  if (!options.client_state.is_null() && !options.client_sd.is_null()) {
    throw ConfigError(
        "save_checkpoint", "client_sd is another name of client_state; give one of them");
  }
  const std::string name =
      agreed_tag(tag ? tag->text() : fmt::format("global_step{}", global_steps_));
  check_tag(name);
  client_state_ = options.client_state.is_null() ? options.client_sd : options.client_state;
  const fs::path folder = save_dir / name;
  accelerator_->save_state(folder);
  client_state_ = nullptr;
  std::string failure;
  if (options.save_latest && accelerator_->is_main_process()) {
    try {
      NewFile latest(save_dir / kLatest);
      latest.write(name + "\n");
      latest.rename_to(save_dir / kLatest, /*replace=*/true);
    } catch (const std::exception& error) {
      failure = error.what();
    }
  }
  // Nobody goes on before the name is there, or without hearing that it is not.
  failure = accelerator_->gather_object(failure).front().get<std::string>();
  if (!failure.empty()) {
    throw CheckpointError(
        folder.string(), fmt::format("is saved, but not named latest: {}", failure));
  }
  return folder;
}

LoadedCheckpoint EngineCore::load_checkpoint(
    const fs::path& load_dir,
    std::optional<CheckpointTag> tag,
    const LoadCheckpointOptions& options) {
  std::string name;
  if (tag) {
    name = tag->text();
  } else if (accelerator_->is_main_process()) {
    name = latest_in(load_dir).value_or("");
  }
  // Rank 0's of `latest`: another save may be under way.
  name = tag ? name : accelerator_->gather_object(name).front().get<std::string>();
  if (name.empty()) {
    log_warning(fmt::format(
        "{} has no file {}; nothing is loaded; give a tag, or start anew",
        load_dir.string(),
        kLatest));
    return {};
  }
  check_tag(name);
  accelerator_->load_state(
      load_dir / name,
      {.strict = options.load_module_strict,
       .optimizers = options.load_optimizer_states,
       .schedulers = options.load_lr_scheduler_states,
       .models_only = options.load_module_only});
  if (!options.load_module_only) {
    load_state(loaded_state_, load_dir / name / kEngineFile, options.load_optimizer_states);
  }
  norm_.reset();
  loss_sum_.reset();
  return {load_dir / name, loaded_state_.at("client_state")};
}

checkpoint::SaveModelOptions EngineCore::save_16bit_options(
    const std::string& file_name, std::optional<at::ScalarType> dtype) const {
  if (dtype && *dtype != at::kHalf && *dtype != at::kBFloat16) {
    throw ConfigError(
        "save_16bit_model",
        fmt::format(
            "expected a dtype of 16 bits, at::kHalf or at::kBFloat16; got {}",
            c10::toString(*dtype)));
  }
  const ds_config::Dtype computes_in = config_.precision.value;
  if (!dtype && computes_in == ds_config::Dtype::kFloat32) {
    throw ConfigError(
        "save_16bit_model",
        "the model computes in float32, which does not say which 16 bits are meant; pass "
        "at::kHalf or at::kBFloat16, or write float32 by accelerator().save_model");
  }
  return {
      .dtype =
          dtype.value_or(computes_in == ds_config::Dtype::kFloat16 ? at::kHalf : at::kBFloat16),
      .file_name = file_name};
}

}  // namespace lockstep
