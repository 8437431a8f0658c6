// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/storage/test_files.h"

namespace lockstep::storage {

/// A test with a folder of checkpoints.
class CheckpointsTest : public testing::Test {
 protected:
  /// Commits a checkpoint of one JSON file, and returns its path.
  std::filesystem::path save(const std::string& name) {
    commit_checkpoint(folder_ / name, {{"name", name}});
    return folder_ / name;
  }

  TestFolder folder_;
};

/// Expects a CheckpointError that names `where` and gives the reason `why`.
inline void expect_refused(
    const std::function<void()>& action, const std::string& where, const std::string& why) {
  EXPECT_THAT(
      action,
      testing::ThrowsMessage<CheckpointError>(
          testing::AllOf(testing::HasSubstr(where), testing::HasSubstr(why))));
}

/// Expects the same files with the same bytes in two folders.
inline void expect_same_files(
    const std::filesystem::path& got, const std::filesystem::path& expected) {
  ASSERT_EQ(names_in(got), names_in(expected));
  for (const std::string& name : names_in(expected)) {
    EXPECT_TRUE(read_bytes(got / name) == read_bytes(expected / name)) << name;
  }
}

/// Returns the number of a process that has ended.
inline pid_t dead_pid() {
  const pid_t child = fork();
  if (child == 0) {
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  return child;
}

/// Replaces this process's number by `pid` in a temporary name.
inline std::filesystem::path with_pid(const std::filesystem::path& name, pid_t pid) {
  std::string text = name.native();
  const std::string own = "-" + std::to_string(getpid()) + "-";
  return text.replace(text.rfind(own), own.size(), "-" + std::to_string(pid) + "-");
}

}  // namespace lockstep::storage
