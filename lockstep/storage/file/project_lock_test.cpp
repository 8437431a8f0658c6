// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/file/project_lock.h"

#include <array>
#include <chrono>
#include <csignal>
#include <functional>
#include <optional>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/storage/test_files.h"

namespace lockstep::storage {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// A child that has called `ready`, and waits to be killed.
class Child {
 public:
  explicit Child(const std::function<void()>& ready) {
    std::array<int, 2> ends{};
    EXPECT_EQ(pipe(ends.data()), 0);
    pid_ = fork();
    if (pid_ == 0) {
      try {
        ready();
      } catch (const std::exception&) {
        _exit(1);
      }
      (void)!write(ends[1], "x", 1);
      while (true) {
        pause();
      }
    }
    close(ends[1]);
    char byte = 0;
    EXPECT_EQ(read(ends[0], &byte, 1), 1) << "the child ended";
    close(ends[0]);
  }
  ~Child() { end(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void end() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
      pid_ = 0;
    }
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
};

TEST(ProjectLock, NamesItsHolderAndEndsWithIt) {
  const TestFolder folder;
  std::optional<ProjectLock> its;
  Child other([&] { its.emplace(folder.path()); });
  EXPECT_THAT(
      [&] { const ProjectLock second(folder.path()); },
      ThrowsMessage<CheckpointError>(AllOf(
          HasSubstr("is in use by another job: process " + std::to_string(other.pid()) + " ("),
          HasSubstr("storage_test) on host "),
          HasSubstr("set another project_dir"))));
  other.end();
  EXPECT_TRUE(ProjectLock(folder.path()).is_held());
}

TEST(ProjectLock, IsSharedByAllOfOneProcess) {
  const TestFolder folder;
  const auto refused_elsewhere = [&] {
    bool refused = false;
    const pid_t child = fork();
    if (child == 0) {
      try {
        const ProjectLock second(folder.path());
        _exit(0);
      } catch (const CheckpointError&) {
        _exit(1);
      }
    }
    int status = 0;
    waitpid(child, &status, 0);
    refused = WIFEXITED(status) && WEXITSTATUS(status) == 1;
    return refused;
  };
  std::optional<ProjectLock> first(folder.path());
  {
    const ProjectLock second(folder.path());
    EXPECT_TRUE(second.is_held());
  }
  EXPECT_TRUE(refused_elsewhere()) << "the second one's end released the first's";
  first.reset();
  EXPECT_FALSE(refused_elsewhere());
}

TEST(ProjectLock, IsNotHadByAChildThatLivesLonger) {
  const TestFolder folder;
  std::optional<ProjectLock> own(folder.path());
  const Child child([] {});
  own.reset();
  const Child another([&] { own.emplace(folder.path()); });
}

TEST(ProjectLock, OfAForkedChildIsIndependentOfItsParents) {
  const TestFolder folder;
  std::optional<ProjectLock> own(folder.path());
  std::thread ending([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    own.reset();
  });
  std::optional<ProjectLock> its;
  const Child child([&] { its.emplace(folder.path(), std::chrono::minutes(5)); });
  ending.join();
  EXPECT_THROW(ProjectLock(folder.path()), CheckpointError) << "closing what the child inherited";
}

TEST(ProjectLock, IsWaitedFor) {
  const TestFolder folder;
  std::optional<ProjectLock> its;
  Child other([&] { its.emplace(folder.path()); });
  std::thread ending([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    other.end();
  });
  EXPECT_TRUE(ProjectLock(folder.path(), std::chrono::minutes(5)).is_held());
  ending.join();
}

TEST(ProjectLock, InAMissingFolderIsAnError) {
  EXPECT_THAT(
      [] { const ProjectLock lock("/no/such/folder"); },
      ThrowsMessage<CheckpointError>(HasSubstr(".lockstep_lock] cannot be opened")));
}

}  // namespace
}  // namespace lockstep::storage
