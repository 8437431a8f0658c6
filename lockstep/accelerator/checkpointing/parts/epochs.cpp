// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include <nlohmann/json.hpp>

#include "lockstep/accelerator/checkpointing/parts/parts.h"

namespace lockstep::internal {
namespace {

/// Saves and loads the place in the program's epochs() ranges.
class EpochsPart final : public CheckpointPart {
 public:
  EpochsPart(const PreparedObjects& objects, EpochCounter& epochs)
      : objects_(objects), epochs_(epochs) {}

  void collect(StateToSave& state) const override {
    for (const EpochCounter::Level& level : epochs_.place()) {
      state.meta["epoch_ranges"].push_back(level.ranges);
      state.meta["epochs_done"].push_back(level.done);
    }
  }

  /// A checkpoint of another version has one range, which its first loader counted.
  void check(StateToLoad& state) const override {
    EpochCounter::Place place;
    for (size_t i = 0; i < state.saved.epoch_ranges.size(); ++i) {
      place.push_back({state.saved.epoch_ranges[i], state.saved.epochs_done[i]});
    }
    state.apply.emplace_back([this, place = std::move(place)] {
      const auto& loaders = objects_.loaders;
      const bool is_counted_by_loader = place.empty() && !loaders.empty();
      epochs_.resume(
          is_counted_by_loader ? EpochCounter::Place{{1, loaders.front()->epoch()}} : place);
    });
  }

 private:
  const PreparedObjects& objects_;
  EpochCounter& epochs_;
};

}  // namespace

std::unique_ptr<CheckpointPart> epochs_part(const PreparedObjects& objects, EpochCounter& epochs) {
  return std::make_unique<EpochsPart>(objects, epochs);
}

}  // namespace lockstep::internal
