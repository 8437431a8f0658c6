// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/write/model_shards.h"

#include <fstream>
#include <set>
#include <string>
#include <sys/syscall.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/storage/model_files.h"
#include "lockstep/storage/test_checkpoints.h"
#include "lockstep/storage/test_traced_child.h"
#include "lockstep/storage/write/temp_folder.h"

namespace lockstep::storage {
namespace {

using testing::AnyOf;
using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;
namespace fs = std::filesystem;

constexpr uint64_t kNoLimit = 1'000'000'000;

OutputTensor counting_tensor(
    const std::string& name, Dtype dtype, const std::vector<int64_t>& shape) {
  OutputTensor tensor = output_tensor(name, dtype, shape, "");
  std::string bytes(output_bytes("test", tensor), '\0');
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>((37 * i + 11) % 256);
  }
  return output_tensor(name, dtype, shape, bytes);
}

/// The tensors of tests/golden/make_model_shards.py.
std::vector<OutputTensor> golden_model() {
  return {
      counting_tensor("wte", Dtype::kF32, {16, 4}),
      counting_tensor("h0_bias", Dtype::kBF16, {5}),
      counting_tensor("h0_weight", Dtype::kBF16, {8, 9}),
      counting_tensor("größe", Dtype::kF32, {3, 2}),
      counting_tensor("count", Dtype::kI64, {}),
      counting_tensor("ln", Dtype::kF16, {6})};
}

/// `count` tensors of 10 bytes, all of the letter.
std::vector<OutputTensor> letters(char message, int count) {
  std::vector<OutputTensor> tensors;
  for (int i = 0; i < count; ++i) {
    tensors.push_back(
        output_tensor("t" + std::to_string(i), Dtype::kU8, {10}, std::string(10, message)));
  }
  return tensors;
}

/// A save that fails. It still completes a save that was killed before.
void fail_to_save(const fs::path& folder, int count = 1) {
  std::vector<OutputTensor> bad = letters('x', count);
  bad.back().bytes = []() -> std::string_view { throw CheckpointError("disk", "is gone"); };
  EXPECT_THROW(write_model_files(folder, bad, 10), CheckpointError);
}

TEST(ModelShards, AreSplitAsHuggingfaceHubSplitsThem) {
  std::ifstream golden(golden_path("model_shards.json"));
  const auto cases = nlohmann::json::parse(golden)["splits"];
  EXPECT_GT(cases.size(), 100U);
  for (const auto& each : cases) {
    EXPECT_EQ(nlohmann::json(split_into_shards(each[0], each[1])), each[2]) << each;
  }
}

TEST(ModelShards, AreTheFilesAccelerateWrites) {
  const TestFolder folder;
  EXPECT_THAT(
      write_model_files(folder / "whole", golden_model(), kNoLimit),
      ElementsAre("model.safetensors"));
  expect_same_files(folder / "whole", golden_path("model_whole"));
  EXPECT_EQ(write_model_files(folder / "shards", golden_model(), 150).size(), 5U);
  expect_same_files(folder / "shards", golden_path("model_shards"));
}

TEST(ModelShards, OfNoTensorsAreOneFile) {
  const TestFolder folder;
  write_model_files(folder.path(), {}, 1);
  EXPECT_EQ(open_model_files(folder.path()).at(0).entries().size(), 0U);
}

TEST(ModelShards, ReplaceThoseOfAnEarlierSaveAndNothingElse) {
  const TestFolder folder;
  const std::set<std::string> others = {
      "config.json", "model.safetensors.backup", "model-1-of-2.safetensors", "pytorch_model.bin"};
  for (const std::string& name : others) {
    write_bytes(folder / name, "x");
  }
  for (const int count : {4, 1, 3, 2, 2, 1}) {
    const auto written = write_model_files(folder.path(), letters('a', count), 10);
    std::set<std::string> expected = others;
    expected.insert(written.begin(), written.end());
    EXPECT_THAT(names_in(folder.path()), ElementsAreArray(expected));
    EXPECT_EQ(open_model_files(folder.path()).size(), static_cast<size_t>(count));
  }
}

TEST(ModelShards, AreNotWrittenIntoACheckpoint) {
  const TestFolder folder;
  commit_checkpoint(folder / "step_1", {{"step", 1}});
  EXPECT_THAT(
      [&] { write_model_files(folder / "step_1", letters('a', 1), 10); },
      ThrowsMessage<CheckpointError>(HasSubstr("is a checkpoint, whose files must not change")));
}

TEST(ModelShards, LeaveTheOldOnesIfTheNewOnesCannotBeWritten) {
  const TestFolder folder;
  write_model_files(folder.path(), letters('a', 2), 10);
  const auto before = names_in(folder.path());
  fail_to_save(folder.path(), 3);
  std::vector<OutputTensor> bad = letters('b', 3);
  bad[2].name = "t0";
  EXPECT_THROW(write_model_files(folder.path(), bad, 10), CheckpointError);
  EXPECT_EQ(names_in(folder.path()), before);
  EXPECT_EQ(open_model_files(folder.path()).at(0).bytes().back(), 'a');
}

/// The letter of all tensors that a reader sees; ' ' if it sees none, '?' if they differ.
char message_in(const fs::path& folder) {
  std::set<char> letters;
  try {
    for (const SafetensorsMap& file : open_model_files(folder)) {
      for (const TensorEntry& entry : file.entries()) {
        letters.insert(file.bytes(entry).front());
      }
    }
  } catch (const CheckpointError&) {
    return ' ';
  }
  return letters.size() == 1 ? *letters.begin() : '?';
}

/// Makes the folder that a save of letters leaves if it is killed before its first rename.
fs::path left_behind(const fs::path& folder, char message, int count) {
  const fs::path name = with_pid(temporary_name(folder / "model"), dead_pid());
  write_model_files(name, letters(message, count), 10);
  return name;
}

TEST(ModelShards, LeftBehindArePublishedOnlyIfCompleteAndAlone) {
  const TestFolder folder;
  const fs::path complete = folder / "whole";
  fs::create_directory(complete);
  left_behind(complete, 'b', 3);
  fail_to_save(complete);
  EXPECT_EQ(message_in(complete), 'b');
  EXPECT_EQ(names_in(complete).size(), 4U);

  // The folder has newer weights since.
  left_behind(complete, 'o', 2);
  fail_to_save(complete);
  EXPECT_EQ(message_in(complete), 'b');
  EXPECT_EQ(names_in(complete).size(), 4U);

  for (const char* lost : {"model-00002-of-00003.safetensors", kModelIndex}) {
    const fs::path parts = folder / (std::string("without ") + lost);
    fs::create_directory(parts);
    fs::remove(left_behind(parts, 'p', 3) / lost);
    fail_to_save(parts);
    EXPECT_THAT(names_in(parts), IsEmpty()) << lost;
  }
  const fs::path torn = folder / "torn index";
  fs::create_directory(torn);
  fs::resize_file(left_behind(torn, 't', 3) / kModelIndex, 100);
  fail_to_save(torn);
  EXPECT_THAT(names_in(torn), IsEmpty());
  const fs::path forged = folder / "forged index";
  fs::create_directory(forged);
  write_bytes(
      left_behind(forged, 'f', 2) / kModelIndex, R"({"weight_map": {"t0": "../torn index"}})");
  fail_to_save(forged);
  EXPECT_THAT(names_in(forged), IsEmpty());
}

TEST(ModelShards, OfWhichOneCannotBeRenamedAreFinishedByTheNextSave) {
  const TestFolder folder;
  write_model_files(folder.path(), letters('a', 3), 10);
  const TracedChild child = run_traced(
      [&] {
        try {
          write_model_files(folder.path(), letters('b', 3), 10);
        } catch (const CheckpointError&) {
          return 5;
        }
        return 0;
      },
      [renamed = 0](long number) mutable {
        return number == SYS_rename && ++renamed == 2 ? EIO : 0;
      });
  if (child.end == TracedChild::End::kCannotTrace) {
    GTEST_SKIP() << "ptrace is not allowed here";
  }
  EXPECT_EQ(child.code, 5);
  EXPECT_EQ(message_in(folder.path()), ' ');
  fail_to_save(folder.path());
  EXPECT_EQ(message_in(folder.path()), 'b');
  EXPECT_EQ(names_in(folder.path()).size(), 4U);
}

class KilledModelSave : public testing::TestWithParam<std::pair<int, int>> {};

TEST_P(KilledModelSave, LeavesTheOldWeightsOrTheNewOnesNeverAMixture) {
  const auto [old_count, new_count] = GetParam();
  for (int kill_at = 0;; ++kill_at) {
    const TestFolder folder;
    write_model_files(folder.path(), letters('a', old_count), 10);
    int calls = 0;
    const TracedChild child = run_traced(
        [&, tensors = letters('b', new_count)] {
          write_model_files(folder.path(), tensors, 10);
          return 0;
        },
        [&](long) { return calls++ == kill_at ? TracedChild::kKill : 0; });
    if (child.end == TracedChild::End::kCannotTrace) {
      GTEST_SKIP() << "ptrace is not allowed here";
    }
    if (child.end == TracedChild::End::kExited) {
      EXPECT_EQ(child.code, 0);
      EXPECT_EQ(message_in(folder.path()), 'b');
      EXPECT_GT(kill_at, 20);
      break;
    }
    const char left = message_in(folder.path());
    EXPECT_THAT(left, AnyOf('a', 'b', ' ')) << "killed at call " << kill_at;
    if (left == ' ') {
      // Only while shards take the names of others, and with the new ones safe.
      EXPECT_TRUE(old_count == new_count && new_count > 1) << "killed at call " << kill_at;
      EXPECT_FALSE(fs::exists(folder / kModelIndex)) << "killed at call " << kill_at;
      remove_stale(folder.path());
    }
    // The next save, even if it fails, finishes what was begun.
    fail_to_save(folder.path(), new_count);
    EXPECT_EQ(message_in(folder.path()), left == ' ' ? 'b' : left) << "killed at call " << kill_at;
    // A save that succeeds is not disturbed by the remains, and removes them.
    const auto written = write_model_files(folder.path(), letters('c', new_count), 10);
    EXPECT_EQ(names_in(folder.path()).size(), written.size()) << "killed at call " << kill_at;
    EXPECT_EQ(message_in(folder.path()), 'c');
  }
}

INSTANTIATE_TEST_SUITE_P(
    Counts,
    KilledModelSave,
    testing::Values(
        std::pair(1, 1), std::pair(1, 2), std::pair(2, 1), std::pair(2, 2), std::pair(3, 2)));

}  // namespace
}  // namespace lockstep::storage
