// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/registry/registry.h"

#include <cstdlib>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/tracking/test_folder.h"

namespace lockstep::tracking {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

TEST(MakeTracker, MakesEveryOneItNames) {
  const TestFolder folder;
  EXPECT_THAT(
      tracker_names(),
      testing::ElementsAre("csv", "exec", "jsonl", "mlflow", "tensorboard", "wandb"));
  for (const char* name : {"csv", "exec:cat > /dev/null", "jsonl", "tensorboard", "wandb"}) {
    const auto tracker = make_tracker(
        name, {.project_dir = folder.path() / "deep" / "runs", .project_name = "mnist"});
    EXPECT_EQ(tracker->name(), std::string(name).substr(0, std::string(name).find(':')));
    tracker->log({{"loss", 0.5}}, 1);
  }
  const auto run = folder.path() / "deep" / "runs" / "mnist";
  EXPECT_EQ(lines_of(run / "metrics.jsonl").size(), 1U);
  int event_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(run)) {
    event_files += entry.path().filename().string().rfind("events.out.tfevents.", 0) == 0 ? 1 : 0;
  }
  EXPECT_EQ(event_files, 1);
}

TEST(MakeTracker, AnUnknownNameIsRefusedWithTheKnownOnes) {
  const TestFolder folder;
  const MakeOptions options{.project_dir = folder.path(), .project_name = "p"};
  EXPECT_THAT(
      [&] { make_tracker("tensorbord", options); },
      ThrowsMessage<ConfigError>(AllOf(
          HasSubstr("'tensorbord'"),
          HasSubstr("jsonl, mlflow, tensorboard"),
          HasSubstr("did you mean 'tensorboard'?"))));
  EXPECT_THAT(
      [&] { make_tracker("comet_ml", options); },
      ThrowsMessage<ConfigError>(
          AllOf(HasSubstr("jsonl, mlflow, tensorboard"), Not(HasSubstr("did you mean")))));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(MakeTracker, ANameMayHaveFoldersButNotLeadOut) {
  const TestFolder folder;
  make_tracker("jsonl", {.project_dir = folder.path(), .project_name = "mnist/lr=0.1"});
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "mnist" / "lr=0.1" / "metrics.jsonl"));
  for (const char* name : {"", "/etc", "..", "a/../../b"}) {
    EXPECT_THAT(
        [&] { make_tracker("jsonl", {.project_dir = folder.path(), .project_name = name}); },
        ThrowsMessage<ConfigError>(
            AllOf(HasSubstr("project_name"), HasSubstr("'" + std::string(name) + "'"))));
  }
  EXPECT_THAT(
      [] { make_tracker("jsonl", {.project_dir = "", .project_name = "p"}); },
      ThrowsMessage<ConfigError>(HasSubstr("project_dir")));
}

TEST(MakeTracker, AFolderThatCannotBeIsRefusedAtConstruction) {
  const TestFolder folder;
  std::ofstream(folder.path() / "file") << "no folder";
  for (const char* name : {"csv", "exec:cat", "jsonl", "tensorboard", "wandb"}) {
    EXPECT_THAT(
        [&] { make_tracker(name, {.project_dir = folder.path() / "file", .project_name = "p"}); },
        ThrowsMessage<ConfigError>(HasSubstr((folder.path() / "file" / "p").string())))
        << name;
  }
  std::filesystem::create_directories(folder.path() / "run" / "metrics.jsonl");
  EXPECT_THAT(
      [&] { make_tracker("jsonl", {.project_dir = folder.path(), .project_name = "run"}); },
      ThrowsMessage<ConfigError>(AllOf(HasSubstr("metrics.jsonl"), HasSubstr("Is a directory"))));
}

TEST(MakeTracker, TakesOptionsAndObjects) {
  const TestFolder folder;
  const MakeOptions options{.project_dir = folder.path(), .project_name = "p"};
  const auto tracker = make_tracker(WandbOptions{.id = "abc"}, options);
  EXPECT_EQ(tracker->name(), "wandb");
  EXPECT_EQ(make_tracker(tracker, options), tracker);
  EXPECT_THAT(
      [&] { make_tracker("exec", options); },
      ThrowsMessage<ConfigError>(HasSubstr("the command is empty")));
  ::unsetenv("MLFLOW_TRACKING_URI");
  EXPECT_THAT(
      [&] { make_tracker("mlflow", options); },
      ThrowsMessage<ConfigError>(HasSubstr("MLFLOW_TRACKING_URI")));
}

TEST(WithAllReplaced, AllMeansTheTrackersThatWorkHere) {
  const auto names = [](const std::vector<TrackerChoice>& choices) {
    std::vector<std::string> result;
    for (const TrackerChoice& choice : with_all_replaced(choices)) {
      result.push_back(choice.name());
    }
    return result;
  };
  ::unsetenv("MLFLOW_TRACKING_URI");
  EXPECT_THAT(names({"all"}), testing::ElementsAre("csv", "jsonl", "tensorboard", "wandb"));
  EXPECT_THAT(
      names({"all", "exec:cat", WandbOptions{.id = "a"}}),
      testing::ElementsAre("csv", "jsonl", "tensorboard", "exec", "wandb"));
  EXPECT_THAT(names({"csv"}), testing::ElementsAre("csv"));
}

}  // namespace
}  // namespace lockstep::tracking
