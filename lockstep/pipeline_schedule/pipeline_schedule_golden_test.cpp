// SPDX-License-Identifier: Apache-2.0
#include <fstream>
#include <map>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/pipeline_schedule/pipeline_schedule.h"
#include "lockstep/pipeline_schedule/test_shapes.h"

namespace lockstep::pipeline_schedule {
namespace {

using testing::UnorderedElementsAre;

const nlohmann::json& golden() {
  static const nlohmann::json parsed = [] {
    std::ifstream file(LOCKSTEP_SOURCE_DIR "/tests/golden/pipeline_schedules.json");
    return nlohmann::json::parse(file);
  }();
  return parsed;
}

ScheduleKind kind_of(const std::string& name) {
  for (const ScheduleKind kind : kScheduleKinds) {
    if (name_of(kind) == name) {
      return kind;
    }
  }
  ADD_FAILURE() << "unknown schedule " << name;
  return {};
}

/// Writes actions as torch does: "5F3 5B3". `splits_all`: torch also splits the backwards that we
/// compute at once.
std::string in_words_of_torch(const std::vector<Action>& actions, bool splits_all) {
  static const std::map<ActionKind, char> letters = {
      {ActionKind::kForward, 'F'},
      {ActionKind::kBackward, 'B'},
      {ActionKind::kBackwardInput, 'I'},
      {ActionKind::kBackwardWeight, 'W'}};
  std::string text;
  const auto add = [&](const Action& action, char letter) {
    text +=
        fmt::format("{}{}{}{}", text.empty() ? "" : " ", action.chunk, letter, action.micro_batch);
  };
  for (const Action& action : actions) {
    if (splits_all && action.kind == ActionKind::kBackward) {
      add(action, 'I');
      add(action, 'W');
    } else {
      add(action, letters.at(action.kind));
    }
  }
  return text;
}

TEST(PipelineScheduleGolden, TheOrderOfEveryRankIsTorchs) {
  std::set<std::string> kinds;
  for (const nlohmann::json& entry : golden().at("schedules")) {
    const ScheduleShape shape{
        .kind = kind_of(entry.at("kind")),
        .ranks = entry.at("ranks"),
        .chunks_per_rank = entry.at("chunks"),
        .micro_batches = entry.at("micro_batches")};
    const ActionLists lists = compute_actions(shape);
    ASSERT_EQ(lists.size(), entry.at("actions").size());
    for (size_t rank = 0; rank < lists.size(); ++rank) {
      EXPECT_EQ(
          in_words_of_torch(lists[rank], shape.kind == ScheduleKind::kZeroBubble),
          entry.at("actions")[rank].get<std::string>())
          << describe(shape) << ", rank " << rank;
    }
    kinds.insert(entry.at("kind"));
  }
  EXPECT_THAT(kinds, UnorderedElementsAre("gpipe", "1f1b", "interleaved", "zero-bubble"));
}

}  // namespace
}  // namespace lockstep::pipeline_schedule
