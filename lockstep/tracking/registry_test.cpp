// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/registry.h"

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
  EXPECT_THAT(tracker_names(), testing::ElementsAre("csv", "jsonl", "tensorboard"));
  for (const std::string& name : tracker_names()) {
    const auto tracker = make_tracker(
        name, {.project_dir = folder.path() / "deep" / "runs", .project_name = "mnist"});
    EXPECT_EQ(tracker->name(), name);
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
          HasSubstr("jsonl, tensorboard"),
          HasSubstr("did you mean 'tensorboard'?"))));
  EXPECT_THAT(
      [&] { make_tracker("wandb", options); },
      ThrowsMessage<ConfigError>(
          AllOf(HasSubstr("jsonl, tensorboard"), Not(HasSubstr("did you mean")))));
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
  for (const std::string& name : tracker_names()) {
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

}  // namespace
}  // namespace lockstep::tracking
