// SPDX-License-Identifier: Apache-2.0
#include <string>

#include <nlohmann/json.hpp>

#include "lockstep/accelerator/checkpointing/parts/parts.h"
#include "lockstep/base/error.h"
#include "lockstep/base/rank.h"
#include "lockstep/storage/manifest.h"

namespace lockstep::internal {
namespace {

/// Saves and loads the state of fp16's loss scaler.
class LossScalePart final : public CheckpointPart {
 public:
  explicit LossScalePart(TrainingStep& step) : step_(step) {}

  void collect(StateToSave& state) const override {
    if (const GradScaler* const scaler = step_.scaler()) {
      state.meta["scaler"] = scaler->state();
    }
  }
  bool is_loaded(const StateToLoad& state) const override { return state.loads_optimizers(); }
  void check(StateToLoad& state) const override;

 private:
  TrainingStep& step_;
};

void LossScalePart::check(StateToLoad& state) const {
  LossScaling& scaling = step_.scaling();
  const GradScaler* const scaler = step_.scaler();
  const storage::SavedMeta& saved = state.saved;
  if ((scaler != nullptr) != saved.scaler.has_value()) {
    throw CheckpointError(
        state.reader.path().string(),
        scaler != nullptr ? "was saved without fp16's loss scaler; this program uses fp16"
                          : "was saved with fp16's loss scaler; this program does not use fp16");
  }
  if (scaler == nullptr) {
    return;
  }
  try {
    scaler->check_state(*saved.scaler);
  } catch (const ConfigError& error) {
    throw CheckpointError(
        state.path(storage::kManifestName),
        "holds no loss scale in meta.scaler; " + without_rank_suffix(error.what()));
  }
  state.apply.emplace_back([&scaling, values = *saved.scaler] { scaling.load(values); });
}

}  // namespace

std::unique_ptr<CheckpointPart> loss_scale_part(TrainingStep& step) {
  return std::make_unique<LossScalePart>(step);
}

}  // namespace lockstep::internal
