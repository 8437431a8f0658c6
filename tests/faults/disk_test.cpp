// SPDX-License-Identifier: Apache-2.0
// Disks that are full or read-only: file systems mounted for one job.
#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e/harness/run_command.h"
#include "tests/faults/fault_bench.h"

namespace lockstep::faults {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr int kUsage = 2;
/// Exit code of the scripts below if they cannot mount a disk.
constexpr int kNoMount = 77;

class Disk : public FaultBench {
 protected:
  /// Runs the fixture on two ranks after the shell code `mount`, and then the shell code `after`.
  /// $project is the project, $outside a folder that stays visible to the test.
  Outcome run_on_disk(
      const fs::path& project,
      const std::string& mount,
      const std::vector<std::string>& arguments,
      const std::string& after = ":") {
    const std::string script = fmt::format(
        "project=$1 outside=$2; shift 2; {{ {}; }} || exit {}; \"$@\"; code=$?; {}; exit $code",
        mount,
        kNoMount,
        after);
    // Without root, in a user namespace.
    std::vector<std::string> words = {"unshare", "--mount"};
    if (::geteuid() != 0) {
      words.push_back("--map-root-user");
    }
    words.insert(
        words.end(),
        {"sh",
         "-c",
         script,
         "sh",
         project.string(),
         control_channel_.string(),
         LOCKSTEP_BIN_DIR "/lockstep",
         "launch",
         "-n",
         "2",
         FAULT_FIXTURE,
         "--project",
         project.string()});
    words.insert(words.end(), arguments.begin(), arguments.end());
    return e2e::run_command(words, {"OMP_NUM_THREADS=1"});
  }

  void SetUp() override {
    const Outcome probe = e2e::run_command(
        {"unshare",
         "--mount",
         ::geteuid() != 0 ? "--map-root-user" : "--fork",
         "sh",
         "-c",
         "mount -t tmpfs none /mnt"});
    can_mount_ = probe.code == 0;
    FaultBench::SetUp();
    fs::create_directory(control_channel_);
  }

  bool can_mount_ = false;
  fs::path control_channel_ = folder_ / "outside";
};

/// Mounts a disk with the project's files and room for the lock and two more small files.
constexpr const char* kFullDisk =
    "mkdir $outside/start && cp -a $project/. $outside/start && "
    "mount -t tmpfs -o size=2m none $project && cp -a $outside/start/. $project && "
    "{ head -c 4m /dev/zero >$project/ballast 2>/dev/null || :; } && truncate -s -16384 "
    "$project/ballast";
constexpr const char* kKeepResult =
    "rm $project/ballast; mkdir $outside/end; cp -a $project/. $outside/end";

TEST_F(Disk, AFullOneFailsTheSaveAndLeavesTheOldCheckpoint) {
  if (!can_mount_) {
    GTEST_SKIP() << "no disk can be mounted here";
  }
  const fs::path full = project("full", 1);
  const Outcome outcome = run_on_disk(full, kFullDisk, {"--resume"}, kKeepResult);
  EXPECT_EQ(outcome.code, kFailed) << outcome.err;
  const auto says_all =
      AllOf(HasSubstr("No space left on device"), HasSubstr("rank "), HasSubstr("checkpoint_1"));
  EXPECT_THAT(outcome.err, says_all);
  const fs::path end = control_channel_ / "end";
  for (const int rank : {0, 1}) {
    EXPECT_EQ(last_step(end, rank), kSecondSave);
  }
  EXPECT_EQ(
      storage::find_newest(end / "checkpoints", storage::Verify::kFull).path, checkpoint(end, 1));
  EXPECT_THAT(strangers_in(end), IsEmpty());
  expect_resumes(end, 1);
}

TEST(FileSizeLimit, FailsTheSaveWithTheFilesNameAndEndsNoRankBySignal) {
  const TestFolder folder;
  const Outcome outcome = e2e::run_command(
      {"bash",
       "-c",
       "ulimit -f 1024; exec \"$@\"",
       "bash",
       LOCKSTEP_BIN_DIR "/lockstep",
       "launch",
       "-n",
       "2",
       FAULT_FIXTURE,
       "--project",
       folder.path().string(),
       "--width",
       "300000"},
      {"OMP_NUM_THREADS=1"});
  EXPECT_EQ(outcome.code, kFailed) << outcome.err;
  EXPECT_THAT(
      outcome.err,
      AllOf(
          HasSubstr("is not saved; rank "),
          HasSubstr(".safetensors] cannot be written; File too large"),
          Not(HasSubstr("SIGXFSZ"))));
  for (const int rank : {0, 1}) {
    EXPECT_THAT(failure_of(folder.path(), rank), HasSubstr("File too large"));
  }
  EXPECT_THAT(strangers_in(folder.path()), IsEmpty());
}

TEST_F(Disk, TrainingMayContinueAfterAFullOne) {
  if (!can_mount_) {
    GTEST_SKIP() << "no disk can be mounted here";
  }
  const fs::path full = project("full", 1);
  const Outcome outcome = run_on_disk(full, kFullDisk, {"--resume", "--go-on"}, kKeepResult);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  expect_unbroken(control_channel_ / "end");
  EXPECT_THAT(strangers_in(control_channel_ / "end"), IsEmpty());
}

TEST_F(Disk, OneThatIsFullForOneRankIsNamedOnAllRanks) {
  if (!can_mount_) {
    GTEST_SKIP() << "no disk can be mounted here";
  }
  const fs::path project = folder_ / "offload";
  fs::create_directory(project);
  const fs::path disk = control_channel_ / "disk";
  const Outcome outcome = run_on_disk(
      project,
      "mkdir $outside/disk_0 $outside/disk_1 && mount -t tmpfs -o size=256k none $outside/disk_1",
      {"--width", "100000", "--nvme", disk.string()});
  EXPECT_THAT(outcome.code, AnyOf(kFailed, kUsage));
  for (const int rank : {0, 1}) {
    EXPECT_THAT(
        failure_of(project, rank),
        AllOf(
            HasSubstr("the optimizer's state cannot be stored in files on rank 1"),
            HasSubstr("nvme_path '" + disk.string() + "_1': No space left on device")));
  }
  EXPECT_THAT(outcome.err, Not(HasSubstr("has left the group")));
}

TEST_F(Disk, AReadOnlyOneIsReportedBeforeTrainingBegins) {
  if (!can_mount_) {
    GTEST_SKIP() << "no disk can be mounted here";
  }
  const fs::path fixed = project("fixed", 1);
  const Outcome outcome =
      run_on_disk(fixed, "mount --bind $project $project && mount -o remount,ro,bind $project", {});
  EXPECT_THAT(outcome.code, AnyOf(kFailed, kUsage));
  EXPECT_THAT(outcome.err, AllOf(HasSubstr(fixed), HasSubstr("Read-only file system")));
  EXPECT_THAT(outcome.out, Not(HasSubstr("training begins")));
  EXPECT_THAT(strangers_in(fixed), IsEmpty());
}

TEST_F(Disk, CheckpointsThatCannotBeWrittenAreSeenBeforeTrainingBegins) {
  if (!can_mount_) {
    GTEST_SKIP() << "no disk can be mounted here";
  }
  // The steps are in the same folder, so the test compares the folder's content.
  const fs::path fixed = project("fixed", 1);
  const Outcome outcome = run_on_disk(
      fixed,
      "mount --bind $project/checkpoints $project/checkpoints && "
      "mount -o remount,ro,bind $project/checkpoints",
      {});
  EXPECT_THAT(outcome.code, AnyOf(kFailed, kUsage));
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("checkpoints"), HasSubstr("Read-only file system")));
  EXPECT_THAT(outcome.out, Not(HasSubstr("training begins")))
      << "it trained, to find at the first save that it cannot save";
  EXPECT_THAT(strangers_in(fixed), IsEmpty());
}

TEST_F(Disk, AFileInTheWayIsSeenBeforeTrainingBegins) {
  const fs::path blocked = folder_ / "blocked";
  fs::create_directory(blocked);
  storage::write_bytes(blocked / "checkpoints", "a file");
  const Outcome outcome = run(blocked, {});
  EXPECT_THAT(outcome.code, AnyOf(kFailed, kUsage));
  EXPECT_THAT(outcome.err, HasSubstr("checkpoints"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("training begins")))
      << "it trained, to find at the first save that it cannot save";
}

}  // namespace
}  // namespace lockstep::faults
