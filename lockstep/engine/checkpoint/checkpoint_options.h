// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include <nlohmann/json_fwd.hpp>

#include <c10/core/ScalarType.h>

#include "lockstep/checkpoint/weights/save_model.h"
#include "lockstep/ds_config/ds_config.h"

namespace lockstep {

/// The name of a checkpoint's folder: a text, or a number as it is printed.
class CheckpointTag {
 public:
  CheckpointTag(std::string text) : text_(std::move(text)) {}       // NOLINT
  CheckpointTag(const char* text) : text_(text) {}                  // NOLINT
  CheckpointTag(double number);                                     // NOLINT
  CheckpointTag(int64_t number) : text_(std::to_string(number)) {}  // NOLINT
  CheckpointTag(int number) : text_(std::to_string(number)) {}      // NOLINT
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

/// Options of Engine::save_checkpoint. A template, so that only sources that use it need
/// <nlohmann/json.hpp>.
template <typename Json>
struct BasicSaveCheckpointOptions {
  /// The program's own state, returned by load_checkpoint; the main process's is saved. `client_sd`
  /// is another name for it.
  Json client_state = nullptr;
  Json client_sd = nullptr;
  /// Writes this tag to `<save_dir>/latest`.
  bool save_latest = true;
  /// Omits parameters that require no gradient; load_checkpoint keeps the model's values of these.
  bool exclude_frozen_parameters = false;
};
using SaveCheckpointOptions = BasicSaveCheckpointOptions<nlohmann::json>;

/// The states that load_checkpoint loads; others stay unchanged.
struct LoadCheckpointOptions {
  /// Unless set, tensors in only the model or only the checkpoint are skipped, with a warning.
  bool load_module_strict = true;
  /// Includes the dynamic loss scale. Without it, a new accumulation group begins.
  bool load_optimizer_states = true;
  bool load_lr_scheduler_states = true;
  /// Loads only the model's tensors and the client state: no counters, loader positions or random
  /// numbers.
  bool load_module_only = false;
};

/// The result of Engine::load_checkpoint. A template, as BasicSaveCheckpointOptions.
template <typename Json>
struct BasicLoadedCheckpoint {
  std::filesystem::path path;  ///< Empty: nothing was loaded.
  Json client_state;
};
using LoadedCheckpoint = BasicLoadedCheckpoint<nlohmann::json>;

/// Returns save_model's options for 16-bit weights. Throws ConfigError if neither the file nor
/// `dtype` determines a 16-bit dtype.
checkpoint::SaveModelOptions save_16bit_options(
    const ds_config::DsConfig& config,
    const std::string& file_name,
    std::optional<at::ScalarType> dtype);

}  // namespace lockstep
