// SPDX-License-Identifier: Apache-2.0
// A damaged or foreign checkpoint is refused with file and reason, or skipped for the previous one
// with a warning.
#include <algorithm>
#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/storage/safetensors/safetensors_map.h"
#include "lockstep/storage/safetensors/slices.h"
#include "lockstep/storage/write/temp_folder.h"
#include "tests/faults/fault_bench.h"

namespace lockstep::faults {
namespace {

using storage::read_bytes;
using storage::write_bytes;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class Damage : public FaultBench {
 protected:
  void SetUp() override {
    FaultBench::SetUp();
    damaged_ = project("damaged", 2);
    newest_ = checkpoint(damaged_, 2);
  }

  /// Expects that a program that loads it ends before the first step, with the reason.
  void expect_refused(const testing::Matcher<std::string>& says) {
    const Outcome outcome = run(damaged_, {"--load", newest_.string()});
    EXPECT_EQ(outcome.code, kFailed) << outcome.err;
    EXPECT_THAT(outcome.err, says);
    EXPECT_EQ(last_step(damaged_, 0), 0);
    EXPECT_EQ(last_step(damaged_, 1), 0);
  }

  /// Expects that a resume loads the previous checkpoint, and names the skipped one.
  void expect_passed_over(const testing::Matcher<std::string>& says) {
    const Outcome outcome = run(damaged_, {"--resume"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("skipped"), says));
    EXPECT_THAT(outcome.out, HasSubstr("resumed checkpoint_0\n"));
    expect_unbroken(damaged_);
  }

  void expect_refused_and_passed_over(const testing::Matcher<std::string>& says) {
    expect_refused(says);
    expect_passed_over(says);
  }

  fs::path damaged_;
  fs::path newest_;
};

TEST_F(Damage, OneFlippedBitInAnyFileIsSeen) {
  const std::vector<std::string> names = storage::names_in(newest_);
  ASSERT_GE(names.size(), 9U);
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    damaged_ = project("damaged", 2);
    storage::flip_bit(newest_ / name, fs::file_size(newest_ / name) / 2, 3);
    expect_refused_and_passed_over(HasSubstr(name));
  }
}

TEST_F(Damage, OneFlippedBitInATensorIsReportedWithItsName) {
  const fs::path file = newest_ / "model.safetensors";
  const std::string last = storage::SafetensorsMap(file).names().back();
  storage::flip_bit(file, fs::file_size(file) - 1, 7);
  expect_refused_and_passed_over(
      AllOf(HasSubstr("model.safetensors"), HasSubstr(last), HasSubstr("damaged")));
}

TEST_F(Damage, DamageOfOneRanksFileIsReportedWithThatRank) {
  const fs::path file = newest_ / "random_states_1.safetensors";
  storage::flip_bit(file, fs::file_size(file) - 1);
  expect_refused_and_passed_over(
      AllOf(HasSubstr("rank 1"), HasSubstr("random_states_1.safetensors")));
}

TEST_F(Damage, ATruncatedFile) {
  for (const std::string& name : storage::names_in(newest_)) {
    SCOPED_TRACE(name);
    damaged_ = project("damaged", 2);
    fs::resize_file(newest_ / name, fs::file_size(newest_ / name) - 1);
    expect_refused_and_passed_over(HasSubstr(name));
  }
}

TEST_F(Damage, AFileWithSomethingAppended) {
  const fs::path file = newest_ / "model.safetensors";
  write_bytes(file, read_bytes(file) + "x");
  expect_refused_and_passed_over(HasSubstr("model.safetensors"));
}

TEST_F(Damage, AMissingFileOfOneRank) {
  fs::remove(newest_ / "loaders_1.json");
  expect_refused_and_passed_over(HasSubstr("loaders_1.json"));
}

TEST_F(Damage, AFileOfAnotherStepsCheckpoint) {
  fs::copy_file(
      checkpoint(damaged_, 1) / "model.safetensors",
      newest_ / "model.safetensors",
      fs::copy_options::overwrite_existing);
  expect_refused_and_passed_over(AllOf(HasSubstr("model.safetensors"), HasSubstr("checkpoint_1")));
}

TEST_F(Damage, AManifestOfAnotherStepsCheckpoint) {
  fs::copy_file(
      checkpoint(damaged_, 1) / "manifest.json",
      newest_ / "manifest.json",
      fs::copy_options::overwrite_existing);
  expect_refused(HasSubstr("checkpoint_1"));
}

TEST_F(Damage, ACheckpointOfANewerVersionIsNotSkipped) {
  edit_manifest(newest_, [](nlohmann::json& manifest) { manifest["version"] = 9; });
  const auto says_all =
      AllOf(HasSubstr("checkpoint_1"), HasSubstr("got \"9\""), HasSubstr("newer"));
  expect_refused(says_all);
  const Outcome outcome = run(damaged_, {"--resume"});
  EXPECT_EQ(outcome.code, kFailed);
  EXPECT_THAT(outcome.err, says_all);
  EXPECT_EQ(last_step(damaged_, 0), 0);
}

TEST_F(Damage, OfTheOnlyCheckpointIsAnErrorOfResume) {
  damaged_ = project("damaged", 1);
  const fs::path file = checkpoint(damaged_, 1) / "model.safetensors";
  storage::flip_bit(file, fs::file_size(file) - 1);
  const Outcome outcome = run(damaged_, {"--resume"});
  EXPECT_EQ(outcome.code, kFailed);
  EXPECT_THAT(
      outcome.err,
      AllOf(
          HasSubstr("none can be used"),
          HasSubstr("model.safetensors"),
          HasSubstr("to start again, remove it, or set another project_dir")));
  EXPECT_EQ(last_step(damaged_, 0), 0);
  EXPECT_THAT(
      storage::names_in(damaged_ / "checkpoints"),
      ElementsAre(".lockstep_lock", "checkpoint_0", "latest"));
}

TEST_F(Damage, RanksThatLoadDifferentCheckpointsAreRefused) {
  const std::string script = "exec " FAULT_FIXTURE " --project " + damaged_.string() + " --load " +
                             (damaged_ / "checkpoints").string() + "/checkpoint_$RANK";
  const Outcome outcome = e2e::run_lockstep(e2e::launch("2", {"sh", "-c", script}));
  EXPECT_EQ(outcome.code, kFailed);
  EXPECT_THAT(
      outcome.err,
      AllOf(
          HasSubstr("rank 1 has"),
          HasSubstr("checkpoint_1\" (8 updates)"),
          HasSubstr("checkpoint_0\" (4 updates)")));
  EXPECT_EQ(last_step(damaged_, 0), 0);
  EXPECT_EQ(last_step(damaged_, 1), 0);
}

TEST_F(Damage, AFieldThisProgramDoesNotKnow) {
  edit_manifest(newest_, [](nlohmann::json& manifest) { manifest["encoding"] = "zstd"; });
  expect_refused_and_passed_over(AllOf(HasSubstr("manifest.json"), HasSubstr("encoding")));
}

TEST_F(Damage, AnInvalidStepIsRefused) {
  for (const nlohmann::json& step : {nlohmann::json("x"), nlohmann::json(-5)}) {
    damaged_ = project("damaged", 2);
    edit_manifest(newest_, [&](nlohmann::json& manifest) { manifest["meta"]["step"] = step; });
    expect_refused_and_passed_over(AllOf(HasSubstr("manifest.json"), HasSubstr("for meta.step")));
  }
}

TEST_F(Damage, AFileThatTheManifestDoesNotList) {
  for (const std::string name : {"optimizer.safetensors", "loaders_1.json"}) {
    damaged_ = project("damaged", 2);
    edit_manifest(newest_, [&](nlohmann::json& manifest) {
      nlohmann::json& files = manifest["files"];
      files.erase(std::find_if(files.begin(), files.end(), [&](const nlohmann::json& record) {
        return record["name"] == name;
      }));
    });
    expect_refused_and_passed_over(HasSubstr(name));
  }
}

TEST_F(Damage, ASliceBeyondItsTensor) {
  const std::string name = "model.safetensors";
  fs::remove(newest_ / name);
  const storage::FileSummary summary = storage::write_safetensors_file(
      newest_ / name,
      {storage::output_tensor("w", storage::Dtype::kU8, {2}, "xy")},
      {{storage::kSlicesKey, storage::render_slices(name, {{"w", {{1}, 0}}})}});
  edit_manifest(newest_, [&](nlohmann::json& manifest) {
    for (nlohmann::json& record : manifest["files"]) {
      if (record["name"] == name) {
        record = storage::to_json({name, summary});
      }
    }
  });
  expect_refused_and_passed_over(
      AllOf(HasSubstr(name + ": \"w\"]"), HasSubstr("beyond the end of the tensor")));
}

TEST_F(Damage, AManifestThatLeadsOutOfTheFolder) {
  for (const std::string name : {"../model.safetensors", "/etc/hostname", "..", "sub/x"}) {
    SCOPED_TRACE(name);
    damaged_ = project("damaged", 2);
    edit_manifest(newest_, [&](nlohmann::json& manifest) { manifest["files"][0]["name"] = name; });
    expect_refused(AllOf(HasSubstr("has an invalid file name"), HasSubstr(name)));
  }
  expect_passed_over(HasSubstr("sub/x"));
}

TEST_F(Damage, AnEmptyFolderThatIsTheNewest) {
  fs::create_directory(checkpoint(damaged_, 3));
  const Outcome outcome = run(damaged_, {"--resume"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("skipped"), HasSubstr("checkpoint_2")));
  EXPECT_THAT(outcome.out, HasSubstr("resumed checkpoint_1\n"));
  expect_unbroken(damaged_);
}

TEST_F(Damage, AHalfWrittenFolderThatIsTheNewest) {
  fs::copy(newest_, checkpoint(damaged_, 3), fs::copy_options::recursive);
  fs::remove(checkpoint(damaged_, 3) / "manifest.json");
  const Outcome outcome = run(damaged_, {"--resume"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("checkpoint_2"), HasSubstr("manifest.json")));
  EXPECT_THAT(outcome.out, HasSubstr("resumed checkpoint_1\n"));
  expect_unbroken(damaged_);
}

TEST_F(Damage, AnotherModel) {
  const Outcome outcome = run(damaged_, {"--resume", "--width", "24"});
  EXPECT_EQ(outcome.code, kFailed);
  EXPECT_THAT(
      outcome.err,
      AllOf(
          HasSubstr("model.safetensors"),
          HasSubstr("in.weight"),
          HasSubstr("[16, 6]"),
          HasSubstr("[24, 6]")));
  EXPECT_EQ(last_step(damaged_, 0), 0);
}

TEST_F(Damage, ALinkInsteadOfAFile) {
  for (const std::string name : {"model.safetensors", "loaders_1.json", "manifest.json"}) {
    SCOPED_TRACE(name);
    damaged_ = project("damaged", 2);
    const fs::path control_channel = folder_ / ("outside_" + name);
    fs::rename(newest_ / name, control_channel);
    fs::create_symlink(control_channel, newest_ / name);
    expect_refused_and_passed_over(AllOf(HasSubstr(name), HasSubstr("symbolic link")));
  }
}

TEST_F(Damage, ACheckpointMovedToAnotherDiskIsFollowedByItsLink) {
  for (const int saves : {1, 2}) {
    SCOPED_TRACE(saves == 1 ? "the only one" : "the newest");
    damaged_ = project("damaged", saves);
    const fs::path control_channel = folder_ / fmt::format("other_disk_{}", saves);
    fs::rename(checkpoint(damaged_, saves), control_channel);
    fs::create_directory_symlink(control_channel, checkpoint(damaged_, saves));
    expect_resumes(damaged_, saves);
    EXPECT_TRUE(fs::is_symlink(checkpoint(damaged_, saves)));
  }
}

TEST_F(Damage, ALinkToADiskThatIsNotMountedIsNamed) {
  fs::remove_all(newest_);
  fs::create_directory_symlink("/no/such/disk", newest_);
  expect_refused_and_passed_over(
      AllOf(HasSubstr("checkpoint_1"), HasSubstr("/no/such/disk, which does not exist")));
  damaged_ = project("damaged", 1);
  fs::remove_all(checkpoint(damaged_, 1));
  fs::create_directory_symlink("/no/such/disk", checkpoint(damaged_, 1));
  const Outcome outcome = run(damaged_, {"--resume"});
  EXPECT_EQ(outcome.code, kFailed);
  EXPECT_THAT(
      outcome.err,
      AllOf(HasSubstr("none can be used"), HasSubstr("/no/such/disk, which does not exist")));
  EXPECT_EQ(last_step(damaged_, 0), 0) << "it began anew";
}

TEST_F(Damage, ALinkAtTheNextCheckpointsPathIsNotFollowed) {
  for (const bool dangling : {false, true}) {
    SCOPED_TRACE(dangling ? "to nothing" : "to a folder");
    damaged_ = project("damaged", 1);
    const fs::path control_channel = folder_ / (dangling ? "nothing" : "something");
    if (!dangling) {
      fs::create_directory(control_channel);
    }
    fs::create_directory_symlink(control_channel, checkpoint(damaged_, 2));
    const Outcome outcome = run(damaged_, {"--resume", "--steps", std::to_string(kSecondSave)});
    EXPECT_TRUE(fs::is_symlink(checkpoint(damaged_, 2)));
    EXPECT_EQ(fs::exists(control_channel), !dangling);
    EXPECT_TRUE(dangling || fs::is_empty(control_channel));
    EXPECT_THAT(strangers_in(damaged_), IsEmpty());
    if (outcome.code == 0) {
      EXPECT_EQ(storage::find_newest(damaged_ / "checkpoints").path, checkpoint(damaged_, 3));
    } else {
      EXPECT_EQ(outcome.code, kFailed);
      EXPECT_THAT(outcome.err, AllOf(HasSubstr("checkpoint_1"), HasSubstr("exists")));
    }
  }
}

TEST_F(Damage, ALinkNamedLikeADeadSavesFolderIsNotFollowed) {
  const fs::path control_channel = folder_ / "outside";
  fs::create_directory(control_channel);
  write_bytes(control_channel / "diary", "dear");
  // This host, and a pid that cannot exist.
  std::string name = storage::temporary_name(checkpoint(damaged_, 3)).filename();
  const size_t random = name.rfind('-');
  const size_t process = name.rfind('-', random - 1);
  name.replace(process + 1, random - process - 1, "999999999");
  fs::create_directory_symlink(control_channel, damaged_ / "checkpoints" / name);
  const Outcome outcome = run(damaged_, {"--resume"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  expect_unbroken(damaged_);
  EXPECT_EQ(read_bytes(control_channel / "diary"), "dear");
}

TEST_F(Damage, APickleIsNotRead) {
  // The names of Accelerate's save_state; the content does not matter, since it is not read.
  const fs::path foreign = damaged_ / "accelerate";
  fs::create_directory(foreign);
  for (const char* name : {"pytorch_model.bin", "optimizer.bin", "random_states_0.pkl"}) {
    write_bytes(foreign / name, "\x80\x02}q.");
  }
  newest_ = foreign;
  expect_refused(AllOf(HasSubstr("accelerate/"), HasSubstr("is a pickle, which is never read")));
}

TEST_F(Damage, APickleInPlaceOfAFileIsNotRead) {
  const fs::path file = newest_ / "model.safetensors";
  std::string pickle = "\x80\x02}q.";
  pickle.resize(fs::file_size(file), '\0');
  write_bytes(file, pickle);
  expect_refused_and_passed_over(HasSubstr("model.safetensors"));
}

}  // namespace
}  // namespace lockstep::faults
