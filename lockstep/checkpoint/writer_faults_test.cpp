// SPDX-License-Identifier: Apache-2.0
#include <cerrno>
#include <fcntl.h>
#include <functional>
#include <sched.h>
#include <set>
#include <string>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <ATen/Functions.h>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/reader.h"
#include "lockstep/checkpoint/writer.h"
#include "lockstep/storage/catalog/catalog.h"
#include "lockstep/storage/test_files.h"
#include "lockstep/storage/test_traced_child.h"
#include "lockstep/storage/write/temp_folder.h"

namespace lockstep::checkpoint {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
namespace fs = std::filesystem;

// Exit codes of the processes below.
constexpr int kSaved = 0;
constexpr int kRefused = 3;
constexpr int kUnable = 77;

void save_value(const fs::path& target, int value, const at::Tensor& tensor) {
  Writer writer(Group(), target, {.overwrite = true});
  writer.add_tensors("model.safetensors", {{"x", tensor}});
  writer.add_json("state.json", {{"value", value}});
  writer.commit({{"value", value}});
}

/// The value of a checkpoint in which everything fits together.
int saved_value(const fs::path& target) {
  const Reader reader(target, storage::Verify::kFull);
  const int value = reader.meta().at("value").get<int>();
  EXPECT_EQ(reader.json("state.json").at("value"), value);
  EXPECT_EQ(reader.tensors("model.safetensors").at(0).tensor.const_data_ptr<float>()[0], value);
  return value;
}

class WriterFaults : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directory(runs_);
    save_value(target_, 1, old_);
    fs::copy(target_, pristine_, fs::copy_options::recursive);
  }
  void restore() {
    fs::remove_all(runs_);
    fs::create_directory(runs_);
    fs::copy(pristine_, target_, fs::copy_options::recursive);
  }
  int save_new() {
    try {
      save_value(target_, 2, new_);
      return kSaved;
    } catch (const CheckpointError&) {
      return kRefused;
    }
  }

  /// Kills a save at its every system call in turn; `decide` may make some of them fail besides.
  void kill_everywhere(const storage::TracedChild::Decide& decide) {
    bool seen_new = false;
    for (int point = 1;; ++point) {
      restore();
      int calls = 0;
      const storage::TracedChild child = storage::run_traced(
          [&] { return save_new(); },
          [&](long number) {
            return ++calls == point ? storage::TracedChild::kKill : decide(number);
          });
      if (child.end == storage::TracedChild::End::kCannotTrace) {
        GTEST_SKIP() << "processes cannot be traced here";
      }
      storage::remove_stale(runs_);
      ASSERT_THAT(storage::names_in(runs_), ElementsAre("step_1")) << "killed at call " << point;
      ASSERT_EQ(storage::find_newest(runs_).path, target_) << "killed at call " << point;
      const bool is_new = saved_value(target_) == 2;
      ASSERT_TRUE(is_new || !seen_new) << "the new one was lost again at call " << point;
      seen_new = is_new;
      if (child.end == storage::TracedChild::End::kExited) {
        EXPECT_EQ(child.code, kSaved);
        EXPECT_TRUE(is_new);
        EXPECT_GT(point, 30);
        return;
      }
    }
  }

  TestFolder folder_;
  fs::path runs_ = folder_ / "runs";
  fs::path target_ = runs_ / "step_1";
  fs::path pristine_ = folder_ / "pristine";
  at::Tensor old_ = at::full({10}, 1.0F);
  at::Tensor new_ = at::full({200'000}, 2.0F);
};

TEST_F(WriterFaults, KilledAtAnySystemCallTheOldOrTheNewOneIsThere) {
  kill_everywhere([](long) { return 0; });
}

TEST_F(WriterFaults, KilledAtAnySystemCallWhereNamesCannotBeExchanged) {
  kill_everywhere([](long number) { return number == SYS_renameat2 ? EINVAL : 0; });
}

TEST_F(WriterFaults, AnySystemCallThatFailsFailsTheSaveAndTheOldOneStays) {
  // Not those that clean up, nor those that cannot fail on a disk.
  const std::set<long> on_disk = {
      SYS_openat, SYS_write, SYS_fsync, SYS_close, SYS_mkdir, SYS_renameat2, SYS_chmod};
  int refusals = 0;
  for (int point = 1;; ++point) {
    restore();
    int calls = 0;
    const storage::TracedChild child = storage::run_traced(
        [&] { return save_new(); },
        [&](long number) { return on_disk.contains(number) && ++calls == point ? EIO : 0; });
    if (child.end == storage::TracedChild::End::kCannotTrace) {
      GTEST_SKIP() << "processes cannot be traced here";
    }
    ASSERT_EQ(child.end, storage::TracedChild::End::kExited);
    ASSERT_EQ(saved_value(target_), child.code == kSaved ? 2 : 1) << "call " << point;
    ASSERT_TRUE(child.code == kSaved || child.code == kRefused) << child.code;
    if (child.code == kSaved) {
      storage::remove_stale(runs_);  // It may have been the removal of the old one that failed.
    }
    ASSERT_THAT(storage::names_in(runs_), ElementsAre("step_1")) << "call " << point;
    refusals += child.code == kRefused ? 1 : 0;
    if (calls < point) {
      EXPECT_EQ(child.code, kSaved);  // Nothing failed any more.
      break;
    }
  }
  EXPECT_GT(refusals, 15);
}

/// Runs `body` in a process of its own; returns its exit code and what it said.
std::pair<int, std::string> in_child(const std::function<int(std::string& said)>& body) {
  int ends[2];
  EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const pid_t child = fork();
  if (child == 0) {
    std::string said;
    const int code = storage::code_of([&] { return body(said); });
    _exit(write(ends[1], said.data(), said.size()) < 0 ? 98 : code);
  }
  close(ends[1]);
  std::string said(4096, '\0');
  const ssize_t size = read(ends[0], said.data(), said.size());
  close(ends[0]);
  said.resize(size < 0 ? 0 : static_cast<size_t>(size));
  int status = 0;
  waitpid(child, &status, 0);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, said};
}

TEST_F(WriterFaults, AFileSizeLimitLeavesTheOldOne) {
  const auto [code, said] = in_child([&](std::string& why) {
    const rlimit limit{100'000, 100'000};
    setrlimit(RLIMIT_FSIZE, &limit);
    try {
      save_value(target_, 2, new_);
    } catch (const CheckpointError& error) {
      why = error.what();
      return kRefused;
    }
    return kSaved;
  });
  EXPECT_EQ(code, kRefused);
  EXPECT_THAT(said, HasSubstr("model.safetensors] cannot be written; File too large"));
  EXPECT_THAT(storage::names_in(runs_), ElementsAre("step_1"));
  EXPECT_EQ(saved_value(target_), 1);
}

/// A disk of that size at `folder`, seen by this process alone.
bool mount_small_disk(const fs::path& folder, const char* size) {
  if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) {
    return false;
  }
  return mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount("tmpfs", folder.c_str(), "tmpfs", 0, size) == 0;
}

TEST_F(WriterFaults, AFullDiskLeavesTheOldOneAndRoomForTheNext) {
  const auto [code, said] = in_child([&](std::string& why) {
    if (!mount_small_disk(runs_, "size=512k")) {
      return kUnable;
    }
    save_value(target_, 1, old_);
    try {
      save_value(target_, 2, new_);
      return kSaved;
    } catch (const CheckpointError& error) {
      why = error.what();
    }
    const bool intact = saved_value(target_) == 1 && storage::names_in(runs_).size() == 1;
    save_value(target_, 3, at::full({10}, 3.0F));
    return intact && saved_value(target_) == 3 ? kRefused : 1;
  });
  if (code == kUnable) {
    GTEST_SKIP() << "no disk can be mounted here";
  }
  EXPECT_EQ(code, kRefused);
  EXPECT_THAT(said, HasSubstr("model.safetensors] cannot be written; No space left on device"));
}

}  // namespace
}  // namespace lockstep::checkpoint
