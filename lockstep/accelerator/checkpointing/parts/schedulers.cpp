// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/accelerator/checkpointing/parts/parts.h"
#include "lockstep/base/log.h"
#include "lockstep/storage/manifest.h"

namespace lockstep::internal {
namespace {

/// Saves and loads the positions of learning rate schedules.
class SchedulersPart final : public CheckpointPart {
 public:
  explicit SchedulersPart(const PreparedObjects& objects) : objects_(objects) {}

  void collect(StateToSave& state) const override {
    state.meta["schedulers"] = nlohmann::json::array();
    for (const Scheduler& scheduler : objects_.schedulers) {
      state.meta["schedulers"].push_back(scheduler.state());
    }
  }
  bool is_loaded(const StateToLoad& state) const override {
    return state.options.schedulers && state.loads_loop();
  }
  void check(StateToLoad& state) const override;

 private:
  const PreparedObjects& objects_;
};

void SchedulersPart::check(StateToLoad& state) const {
  const std::vector<Scheduler>& schedulers = objects_.schedulers;
  const storage::SavedMeta& saved = state.saved;
  if (state.options.may_lack_schedulers && schedulers.empty() && !saved.schedulers.empty()) {
    log_warning(fmt::format(
        "{} has a learning rate schedule, which is not loaded: this program prepared none; prepare "
        "one to continue it",
        state.reader.path().string()));
    return;
  }
  state.must_match(
      "schedulers",
      saved.schedulers.size(),
      schedulers.size(),
      "prepare the same number, or load without them: LoadStateOptions::schedulers = false, an "
      "engine's load_lr_scheduler_states = false");
  for (size_t i = 0; i < schedulers.size(); ++i) {
    state.apply.push_back(schedulers[i].check_state(
        saved.schedulers[i],
        state.path(storage::kManifestName),
        fmt::format("meta.schedulers[{}]", i)));
  }
}

}  // namespace

std::unique_ptr<CheckpointPart> schedulers_part(const PreparedObjects& objects) {
  return std::make_unique<SchedulersPart>(objects);
}

}  // namespace lockstep::internal
