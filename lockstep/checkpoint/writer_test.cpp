// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/writer.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <limits>
#include <string>
#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <ATen/Functions.h>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/reader.h"
#include "lockstep/comm/connect/test_connected_ranks.h"
#include "lockstep/comm/thread/ranks.h"
#include "lockstep/storage/test_files.h"

namespace lockstep::checkpoint {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;
namespace fs = std::filesystem;
using Json = nlohmann::json;

std::string rank_file(int rank) {
  return "rank_" + std::to_string(rank) + ".safetensors";
}

void save(const Group& group, const fs::path& target, float value, WriterOptions options = {}) {
  Writer writer(group, target, options);
  writer.add_tensors(
      rank_file(group.rank()), {{"x", at::full({4}, value + static_cast<float>(group.rank()))}});
  if (group.rank() == 0) {
    writer.add_json("state.json", {{"value", value}});
  }
  writer.commit({{"value", value}});
}

void expect_saved(const fs::path& target, float value, int world) {
  const Reader reader(target, storage::Verify::kFull);
  EXPECT_EQ(reader.world_size(), world);
  EXPECT_EQ(reader.meta().at("value"), value);
  EXPECT_EQ(reader.json("state.json").at("value"), value);
  for (int rank = 0; rank < world; ++rank) {
    const NamedTensors tensors = reader.tensors(rank_file(rank));
    EXPECT_TRUE(at::equal(tensors.at(0).tensor, at::full({4}, value + static_cast<float>(rank))));
  }
}

class WriterTest : public testing::TestWithParam<int> {
 protected:
  /// Runs `body` on every rank, and checks that all of them throw the same.
  void everyone_refuses(const std::function<void(Group)>& body, const std::string& what) {
    std::atomic<int> refused = 0;
    ranks(GetParam(), [&](const Group& group) {
      EXPECT_THAT(
          [&] { body(group); },
          ThrowsMessage<CheckpointError>(AllOf(HasSubstr("is not saved"), HasSubstr(what))));
      ++refused;
    });
    EXPECT_EQ(refused, GetParam());
  }
  int last() const { return GetParam() - 1; }

  TestFolder folder_;
  fs::path target_ = folder_ / "step_1";
};

INSTANTIATE_TEST_SUITE_P(Ranks, WriterTest, testing::Values(1, 2, 3));

TEST_P(WriterTest, SavesTheFilesOfAllRanks) {
  ranks(GetParam(), [&](const Group& group) { save(group, target_, 5); });
  EXPECT_THAT(storage::names_in(folder_.path()), ElementsAre("step_1"));
  EXPECT_EQ(storage::names_in(target_).size(), GetParam() + 2U);
  expect_saved(target_, 5, GetParam());
}

TEST_P(WriterTest, OverwritesOnlyOnRequest) {
  ranks(GetParam(), [&](const Group& group) { save(group, target_, 1); });
  everyone_refuses([&](const Group& group) { save(group, target_, 2); }, "already exists");
  expect_saved(target_, 1, GetParam());
  ranks(GetParam(), [&](const Group& group) { save(group, target_, 3, {.overwrite = true}); });
  expect_saved(target_, 3, GetParam());
  EXPECT_EQ(Reader(target_).sequence(), 2);
  EXPECT_THAT(storage::names_in(folder_.path()), ElementsAre("step_1"));
}

TEST_P(WriterTest, OneRankThatFailsFailsAllAndTheOldOneStays) {
  ranks(GetParam(), [&](const Group& group) { save(group, target_, 1); });
  everyone_refuses(
      [&](const Group& group) {
        Writer writer(group, target_, {.overwrite = true});
        const at::Tensor fine = at::ones({4});
        writer.add_tensors(
            rank_file(group.rank()), {{"x", group.rank() == last() ? at::Tensor() : fine}});
        writer.add_json(group.rank() == 0 ? "state.json" : "more.json", {{"value", 2}});
        writer.commit({{"value", 2}});
      },
      "rank " + std::to_string(last()) + " failed: [");
  expect_saved(target_, 1, GetParam());
  EXPECT_THAT(storage::names_in(folder_.path()), ElementsAre("step_1"));
}

TEST_P(WriterTest, FoldersOfItsOwnBelongToTheCheckpoint) {
  const auto save_with = [&](const Group& group, bool fails) {
    Writer writer(group, target_, {.overwrite = true});
    writer.add_own([&](const fs::path& made) {
      Group all = group;
      all.barrier();  // It may communicate.
      if (group.rank() == last()) {
        fs::create_directory(made / "engine");
        storage::write_bytes(made / "engine" / "latest", fails ? "new" : "old");
      }
      if (fails && group.rank() == last()) {
        throw ConfigError("engine", "no more");
      }
    });
    writer.commit(Json::object());
  };
  ranks(GetParam(), [&](const Group& group) { save_with(group, false); });
  everyone_refuses([&](const Group& group) { save_with(group, true); }, "no more");
  EXPECT_EQ(storage::read_bytes(target_ / "engine" / "latest"), "old");
  EXPECT_THAT(storage::names_in(folder_.path()), ElementsAre("step_1"));
}

TEST_P(WriterTest, TheFirstRankThatFailsIsTheOneReported) {
  everyone_refuses(
      [&](const Group& group) {
        Writer writer(group, target_);
        writer.fail("reason " + std::to_string(group.rank()));
        writer.fail("not the first reason");
        writer.commit(Json::object());
      },
      "rank 0 failed: reason 0");
  EXPECT_THAT(storage::names_in(folder_.path()), IsEmpty());
}

TEST_P(WriterTest, MetaThatCannotBeStoredFailsAll) {
  everyone_refuses(
      [&](const Group& group) {
        Writer writer(group, target_);
        writer.commit({{"loss", std::numeric_limits<double>::infinity()}});
      },
      "infinite");
  everyone_refuses(
      [&](const Group& group) { Writer(group, target_).commit(3); },
      "got meta of type number, expected an object");
  EXPECT_THAT(storage::names_in(folder_.path()), IsEmpty());
}

TEST_P(WriterTest, ATargetThatAppearsMeanwhileIsNotReplaced) {
  everyone_refuses(
      [&](const Group& group) {
        Writer writer(group, target_);
        if (group.rank() == 0) {
          fs::create_directory(target_);
        }
        writer.commit(Json::object());
      },
      "exists");
  EXPECT_THAT(storage::names_in(folder_.path()), ElementsAre("step_1"));
}

TEST_P(WriterTest, WithoutACommitNothingIsLeft) {
  ranks(GetParam(), [&](Group group) {
    {
      Writer writer(group, target_);
      writer.add_tensors(rank_file(group.rank()), {{"x", at::ones({4})}});
    }
    group.barrier();
    EXPECT_THAT(storage::names_in(folder_.path()), IsEmpty());
  });
}

TEST_P(WriterTest, OnlyACheckpointIsEverOverwritten) {
  fs::create_directory(target_);
  storage::write_bytes(target_ / "thesis.tex", "precious");
  const auto overwrite = [&](const Group& group) { save(group, target_, 1, {.overwrite = true}); };
  everyone_refuses(overwrite, "is not a checkpoint");
  EXPECT_EQ(storage::read_bytes(target_ / "thesis.tex"), "precious");
  fs::rename(target_, folder_ / "elsewhere");
  fs::create_directory_symlink(folder_ / "elsewhere", target_);
  everyone_refuses(overwrite, "is not a checkpoint");
  fs::remove(target_);
  fs::create_directory(target_);  // Empty: nothing to lose.
  ranks(GetParam(), overwrite);
  expect_saved(target_, 1, GetParam());
}

TEST_P(WriterTest, MakesMissingParents) {
  ranks(GetParam(), [&](const Group& group) { save(group, folder_ / "a" / "b" / "step_1", 1); });
  expect_saved(folder_ / "a" / "b" / "step_1", 1, GetParam());
}

TEST_P(WriterTest, RefusesTargetsThatCannotBe) {
  storage::write_bytes(folder_ / "file", "");
  everyone_refuses([&](const Group& group) { save(group, folder_ / "file" / "x", 1); }, "file");
  everyone_refuses(
      [&](const Group& group) { save(group, "/proc/nowhere/step_1", 1); }, "/proc/nowhere");
  everyone_refuses([&](const Group& group) { save(group, folder_ / "..", 1); }, "not a valid name");
}

TEST(Writer, RefusesOneFileTwiceAndNamesThatAreNotPlain) {
  const TestFolder folder;
  for (const char* name : {"state.json", "../x.json", "manifest.json", "a/b", ".hidden", "\xff"}) {
    Writer writer(Group(), folder / "step_1");
    writer.add_json("state.json", 1);
    writer.add_json(name, 2);
    EXPECT_THROW(writer.commit(Json::object()), CheckpointError) << name;
    EXPECT_THAT(storage::names_in(folder.path()), IsEmpty());
  }
}

TEST(Writer, RefusesOneFileFromTwoRanks) {
  const TestFolder folder;
  ranks(2, [&](const Group& group) {
    Writer writer(group, folder / "step_1");
    writer.add_json("state.json", group.rank());
    EXPECT_THAT(
        [&] { writer.commit(Json::object()); },
        ThrowsMessage<CheckpointError>(HasSubstr("File exists")));
  });
}

TEST(Writer, RefusesRanksThatSaveToDifferentTargets) {
  const TestFolder folder;
  ranks(2, [&](const Group& group) {
    EXPECT_THAT(
        [&] { Writer(group, folder / ("step_" + std::to_string(group.rank()))); },
        ThrowsMessage<CheckpointError>(
            AllOf(HasSubstr("rank 1 failed"), HasSubstr("differs from the target of rank 0"))));
  });
  EXPECT_THAT(storage::names_in(folder.path()), IsEmpty());
}

TEST(Writer, SavesOneCheckpointOnly) {
  const TestFolder folder;
  Writer writer(Group(), folder / "step_1/");
  writer.commit(Json::object());
  EXPECT_EQ(writer.target(), folder / "step_1");
  EXPECT_THROW(writer.add_json("a.json", 1), ConfigError);
  EXPECT_THROW(writer.commit(Json::object()), ConfigError);
}

TEST(Writer, IsPrivateWhileItGrowsAndThenAsTheUmaskSays) {
  const TestFolder folder;
  const mode_t before = umask(027);
  Writer writer(Group(), folder / "step_1");
  struct stat status {};
  EXPECT_EQ(stat((folder / storage::names_in(folder.path()).at(0)).c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700U);
  writer.commit(Json::object());
  EXPECT_EQ(stat((folder / "step_1").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0750U);
  umask(before);
}

TEST(Writer, WorksOverSockets) {
  const TestFolder folder;
  gloo_ranks(
      2, [&](const Group& group) { save(group, folder / "step_1", 1); }, std::chrono::seconds(60));
  expect_saved(folder / "step_1", 1, 2);
}

}  // namespace
}  // namespace lockstep::checkpoint
