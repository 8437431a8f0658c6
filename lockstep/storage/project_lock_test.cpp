// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/project_lock.h"

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

namespace lockstep::checkpoint {
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

TEST(ProjectLock, names_the_process_that_has_it_and_goes_with_it) {
  const TestFolder folder;
  std::optional<ProjectLock> its;
  Child other([&] { its.emplace(folder.path()); });
  EXPECT_THAT(
      [&] { const ProjectLock second(folder.path()); },
      ThrowsMessage<CheckpointError>(AllOf(
          HasSubstr("another job saves here: process " + std::to_string(other.pid()) + " ("),
          HasSubstr("storage_test) on host "),
          HasSubstr("set another project_dir"))));
  other.end();
  EXPECT_TRUE(ProjectLock(folder.path()).is_held());
}

TEST(ProjectLock, is_shared_by_all_of_one_process) {
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

TEST(ProjectLock, is_not_had_by_a_child_that_lives_longer) {
  const TestFolder folder;
  std::optional<ProjectLock> own(folder.path());
  const Child child([] {});
  own.reset();
  const Child another([&] { own.emplace(folder.path()); });
}

TEST(ProjectLock, of_a_forked_child_is_its_own_whatever_it_inherited) {
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

TEST(ProjectLock, is_waited_for) {
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

TEST(ProjectLock, in_a_folder_that_is_not_there_is_an_error) {
  EXPECT_THAT(
      [] { const ProjectLock lock("/no/such/folder"); },
      ThrowsMessage<CheckpointError>(HasSubstr(".lockstep_lock] cannot be opened")));
}

}  // namespace
}  // namespace lockstep::checkpoint
