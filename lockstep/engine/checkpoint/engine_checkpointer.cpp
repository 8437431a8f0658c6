// SPDX-License-Identifier: Apache-2.0
// What an engine saves, and goes on from.
#include <algorithm>
#include <fstream>
#include <functional>
#include <optional>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/accelerator/training_state/non_finite_json.h"
#include "lockstep/accelerator/training_state/state_hooks.h"
#include "lockstep/base/error.h"
#include "lockstep/base/host/machine.h"
#include "lockstep/base/log.h"
#include "lockstep/base/new_file.h"
#include "lockstep/engine/engine_core.h"
#include "lockstep/storage/deepspeed_folder.h"
#include "lockstep/storage/safetensors/saved_values.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEngineFile = "engine.json";
constexpr const char* kLatest = "latest";
// Of what an engine says of itself. Older checkpoints have neither.
constexpr const char* kMicroStepsAnUpdate = "gradient_accumulation_steps";
constexpr const char* kWithinUpdate = "within_update";
constexpr const char* kAveraged = "averaged";
/// Of tags that an error names.
constexpr size_t kTagsShown = 20;

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

/// The error for a tag whose folder does not exist: names those that do.
CheckpointError no_such_tag(const fs::path& load_dir, const std::string& tag) {
  std::vector<std::string> tags = storage::checkpoint_tags(load_dir);
  const size_t more = tags.size() - std::min(tags.size(), kTagsShown);
  tags.erase(tags.begin(), tags.begin() + static_cast<std::ptrdiff_t>(more));
  std::string there = fmt::format("{} is no folder", load_dir.string());
  std::error_code error;
  if (fs::is_directory(load_dir, error)) {
    there = fmt::format(
        "{} holds {}{}",
        load_dir.string(),
        tags.empty() ? "no checkpoint" : fmt::format("the tags {}", fmt::join(tags, ", ")),
        more == 0 ? "" : fmt::format(", and {} before these", more));
  }
  const bool named = latest_in(load_dir) == tag;
  return {
      (load_dir / tag).string(),
      fmt::format(
          "does not exist{}; {}; give the tag of a checkpoint that was saved, and the folder that "
          "was given to save_checkpoint",
          named ? fmt::format(", though {} names it", kLatest) : "",
          there)};
}

}  // namespace

void EngineCore::register_hooks() {
  remove_hooks_.push_back(
      accelerator().register_save_state_pre_hook([this](StateBeingSaved& saved) {
        if (leads_disk()) {
          saved.contents.add_json(kEngineFile, state());
        }
      }));
  remove_hooks_.push_back(
      accelerator().register_load_state_pre_hook([this](StateBeingLoaded& loaded) {
        if (!loaded.checkpoint.has(kEngineFile)) {
          throw CheckpointError(
              loaded.checkpoint.path().string(),
              "was not saved by an engine; load it with Accelerator::load_state");
        }
        loaded_state_ = loaded.checkpoint.json(kEngineFile);  // Counts once all else is found good.
        if (loads_position_) {
          check_position((loaded.checkpoint.path() / kEngineFile).string());
        }
      }));
}

nlohmann::json EngineCore::state() const {
  return {
      {"global_steps", global_steps_},
      {"global_samples", global_samples_},
      {"skipped_steps", skipped_steps_},
      {"micro_steps", micro_steps_},
      {kMicroStepsAnUpdate, gradient_accumulation_steps_},
      {kWithinUpdate, has_optimizer_ && optimizer_.gradients_are_due()},
      {kAveraged, averaged_},
      {"loss_scale", loss_scale_ ? loss_scale_->state() : nlohmann::json(nullptr)},
      {"client_state", client_state_}};
}

/// CheckpointError for counters that are none, and for gradients that were divided by another
/// number of micro-steps than those that would be added to them.
void EngineCore::check_position(const std::string& path) const {
  const int64_t now = gradient_accumulation_steps_;
  if (!loaded_state_.is_object()) {
    return;  // Said by load_state.
  }
  const storage::SavedValues values(loaded_state_, path);
  for (const char* key : {"global_steps", "global_samples", "skipped_steps", "micro_steps"}) {
    values.count(key);
  }
  const nlohmann::json saved = loaded_state_.value(kMicroStepsAnUpdate, nlohmann::json(now));
  if (saved != nlohmann::json(now) &&
      loaded_state_.value(kWithinUpdate, nlohmann::json(false)) == nlohmann::json(true)) {
    throw CheckpointError(
        path,
        fmt::format(
            "was saved within an update of {} micro-steps; this engine makes one of {}; load it "
            "with gradient_accumulation_steps {}, or with load_optimizer_states = false, or save "
            "where an update ends",
            saved.dump(),
            now,
            saved.dump()));
  }
}

void EngineCore::load_state(
    const nlohmann::json& saved, const std::string& path, bool with_optimizer) {
  try {
    const auto global_steps = saved.at("global_steps").get<int64_t>();
    const auto global_samples = saved.at("global_samples").get<int64_t>();
    const auto skipped_steps = saved.at("skipped_steps").get<int64_t>();
    const auto micro_steps = saved.at("micro_steps").get<int64_t>();
    // What older checkpoints do not say follows from whether gradients came with them.
    const bool is_told = saved.contains(kMicroStepsAnUpdate);
    const bool with_gradients = has_optimizer_ && optimizer_.gradients_are_due();
    const bool within = is_told ? saved.value(kWithinUpdate, false) : with_gradients;
    const bool same_count =
        is_told ? saved.at(kMicroStepsAnUpdate) == gradient_accumulation_steps_ : within;
    const bool averaged = saved.value(kAveraged, true) || !(with_optimizer && within);
    if (with_optimizer && loss_scale_ && !saved.at("loss_scale").is_null()) {
      loss_scale_->load_state(saved.at("loss_scale"));
    }
    averaged_ = averaged;
    global_steps_ = global_steps;
    global_samples_ = global_samples;
    skipped_steps_ = skipped_steps;
    // Where updates have other micro-steps now, or the gradients of those before the save are gone,
    // one begins: else it would end too soon.
    const bool goes_on = same_count && (with_optimizer || !within);
    micro_steps_ = goes_on ? micro_steps : global_steps * gradient_accumulation_steps_;
  } catch (const std::exception& error) {
    throw CheckpointError(path, fmt::format("is not an engine's state: {}", error.what()));
  }
}

/// The scaler's is what was saved, by a run whose scale may have been fixed and this one's not, or
/// the other way round: what this run's file says counts.
void EngineCore::set_loaded_scale() {
  GradScaler* const scaler = accelerator().scaler();
  if (scaler == nullptr) {
    return;
  }
  const double scale = loss_scale_ ? loss_scale_->scale() : config_.fp16.loss_scale.value;
  if (static_cast<float>(scaler->get_scale()) == static_cast<float>(scale)) {
    return;
  }
  nlohmann::json state = scaler->state();
  state["scale"] = scale;
  scaler->load_state(state);
}

/// Rank 0's, once tag_validation has had its say.
std::string EngineCore::agreed_tag(const std::string& mine) {
  std::vector<std::string> tags;
  bool differ = false;
  for (const nlohmann::json& tag : accelerator().gather_object(mine)) {
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
  client_state_ =
      without_non_finite(options.client_state.is_null() ? options.client_sd : options.client_state);
  if (saves_on_each_host()) {
    client_state_ =
        accelerator().broadcast_object(client_state_);  // Of which each host has a copy.
  }
  const fs::path folder = save_dir / name;
  accelerator().save_state(
      folder, {.overwrite = true, .exclude_frozen_parameters = options.exclude_frozen_parameters});
  client_state_ = nullptr;
  if (options.save_latest) {
    name_latest(save_dir, name);
  } else {
    accelerator().wait_for_everyone();
  }
  return folder;
}

bool EngineCore::saves_on_each_host() const {
  return saves_on_each_host_ && !accelerator().world().on_one_host();
}

/// Whether this rank writes what a disk has once.
bool EngineCore::leads_disk() const {
  return saves_on_each_host() ? accelerator().is_local_main_process()
                              : accelerator().is_main_process();
}

/// What any rank says of a failure; empty if there is none. Collective.
std::string EngineCore::first_failure(const std::string& mine) {
  const std::vector<nlohmann::json> all = accelerator().gather_object(mine);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (const auto text = all[rank].get<std::string>(); !text.empty()) {
      return fmt::format("rank {}: {}", rank, text);
    }
  }
  return "";
}

/// Lets `latest` name `name`, on every disk or on none. Nobody goes on before the name is there, or
/// without hearing that it is not. Collective.
void EngineCore::name_latest(const fs::path& save_dir, const std::string& name) {
  std::optional<NewFile> prepared;
  std::optional<std::string> before;
  bool is_named = false;
  const auto attempt = [&](const std::function<void()>& step) {
    std::string failure;
    if (leads_disk()) {
      try {
        step();
      } catch (const std::exception& error) {
        failure = error.what();
      }
    }
    return first_failure(failure);
  };
  // A disk that is full or read-only is found before any other has got the name.
  std::string failure = attempt([&] {
    before = latest_in(save_dir);
    prepared.emplace(save_dir / kLatest);
    prepared->write(name + "\n");
  });
  if (failure.empty()) {
    failure = attempt([&] {
      prepared->rename_to(save_dir / kLatest, /*replace=*/true);
      is_named = true;
    });
    if (!failure.empty()) {
      attempt([&] {
        if (is_named && before) {
          NewFile again(save_dir / kLatest);
          again.write(*before + "\n");
          again.rename_to(save_dir / kLatest, /*replace=*/true);
        } else if (is_named) {
          fs::remove(save_dir / kLatest);
        }
      });
    }
  }
  if (!failure.empty()) {
    throw CheckpointError(
        (save_dir / name).string(), fmt::format("is saved, but not named latest: {}", failure));
  }
}

/// What `latest` names; empty if there is none. Where hosts have disks of their own, and died
/// between one's and another's naming, a name that all of them have. Collective.
std::string EngineCore::agreed_latest(const fs::path& load_dir) {
  const std::string mine = leads_disk() ? latest_in(load_dir).value_or("") : "";
  const std::vector<nlohmann::json> all = accelerator().gather_object(mine);
  if (!saves_on_each_host()) {
    return all.front().get<std::string>();
  }
  std::vector<std::string> names;
  for (const nlohmann::json& each : all) {
    const auto name = each.get<std::string>();
    if (!name.empty() && std::find(names.begin(), names.end(), name) == names.end()) {
      names.push_back(name);
    }
  }
  for (const std::string& name : names) {
    check_tag(name);
    const std::string lacking =
        fs::exists(load_dir / name)
            ? ""
            : fmt::format("host {} has no {}", describe_machine().system.host, name);
    const std::string told = first_failure(lacking);
    if (told.empty()) {
      if (names.size() > 1) {
        log_warning(fmt::format(
            "hosts name different checkpoints in {}: {}; {} is loaded, which all have",
            (load_dir / kLatest).string(),
            fmt::join(names, ", "),
            name));
      }
      return name;
    }
    if (name == names.back()) {
      throw CheckpointError(
          (load_dir / name).string(),
          told +
              "; each host needs what its own ranks saved: copy it there, or give a tag that "
              "all have");
    }
  }
  return "";
}

LoadedCheckpoint EngineCore::load_checkpoint(
    const fs::path& load_dir,
    std::optional<CheckpointTag> tag,
    const LoadCheckpointOptions& options) {
  // One rank's of `latest`: another save may be under way.
  const std::string name = tag ? tag->text() : agreed_latest(load_dir);
  if (name.empty()) {
    const auto deepspeeds = storage::deepspeed_checkpoint(load_dir);
    const std::string failure = first_failure(deepspeeds ? deepspeeds->what() : "");
    if (!failure.empty()) {
      throw deepspeeds ? *deepspeeds : CheckpointError(load_dir.string(), failure);
    }
    log_warning(fmt::format(
        "{} has no file {}; nothing is loaded; give a tag, or start from the beginning",
        load_dir.string(),
        kLatest));
    return {};
  }
  check_tag(name);
  loads_position_ = !options.load_module_only && options.load_optimizer_states;
  try {
    accelerator().load_state(
        load_dir / name,
        {.strict = options.load_module_strict,
         .optimizers = options.load_optimizer_states,
         .schedulers = options.load_lr_scheduler_states,
         .may_lack_schedulers = true,
         .models_only = options.load_module_only});
  } catch (const CheckpointError&) {
    std::error_code error;
    if (!fs::exists(load_dir / name, error)) {
      throw no_such_tag(load_dir, name);
    }
    throw;
  }
  if (!options.load_module_only) {
    load_state(loaded_state_, load_dir / name / kEngineFile, options.load_optimizer_states);
    if (options.load_optimizer_states) {
      set_loaded_scale();
    }
    report_->go_on_from(global_samples_);
  }
  norm_.reset();
  loss_sum_.reset();
  return {load_dir / name, with_non_finite(loaded_state_.at("client_state"))};
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
