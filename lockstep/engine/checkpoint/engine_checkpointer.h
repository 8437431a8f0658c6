// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "lockstep/accelerator/checkpointing/checkpoint_part.h"
#include "lockstep/engine/checkpoint/checkpoint_options.h"
#include "lockstep/engine/checkpoint/latest_tag.h"
#include "lockstep/engine/state/engine_context.h"
#include "lockstep/engine/step/engine_backward.h"
#include "lockstep/engine/step/engine_update.h"
#include "lockstep/engine/step/micro_step_meter.h"

namespace lockstep {

/// Saves and loads an engine: the Accelerator's state, and the file engine.json with the engine's
/// counts, loss scale and client state. See Engine for the functions.
class EngineCheckpointer {
 public:
  EngineCheckpointer(
      EngineContext& context,
      MicroStepMeter& meter,
      EngineBackward& backward,
      EngineUpdate& update);

  std::filesystem::path save(
      const std::filesystem::path& save_dir,
      const std::optional<CheckpointTag>& tag,
      const SaveCheckpointOptions& options);
  LoadedCheckpoint load(
      const std::filesystem::path& load_dir,
      const std::optional<CheckpointTag>& tag,
      const LoadCheckpointOptions& options);

 private:
  /// engine.json as a part of the Accelerator's checkpoint.
  class Part final : public internal::CheckpointPart {
   public:
    explicit Part(EngineCheckpointer& engine) : engine_(engine) {}
    void collect(internal::StateToSave& state) const override;
    bool is_loaded(const internal::StateToLoad& /*state*/) const override { return true; }
    void check(internal::StateToLoad& state) const override;

   private:
    EngineCheckpointer& engine_;
  };

  std::string tag_of_rank_0(const std::string& own_tag);
  nlohmann::json engine_state() const;
  void check_accumulation(const std::string& path) const;
  void load_accelerator_state(
      const std::filesystem::path& folder, const LoadCheckpointOptions& options);
  void load_engine_state(const std::string& path, bool with_optimizer);
  void restore_loss_scale();

  EngineContext& context_;
  MicroStepMeter& meter_;
  EngineBackward& backward_;
  EngineUpdate& update_;
  LatestTag latest_;
  nlohmann::json client_state_;  ///< To be saved.
  nlohmann::json loaded_state_;  ///< engine.json of the checkpoint that is loaded.
};

}  // namespace lockstep
