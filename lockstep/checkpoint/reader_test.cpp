// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/reader.h"

#include <functional>
#include <string>
#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/weights/safetensors.h"
#include "lockstep/checkpoint/writer.h"
#include "lockstep/storage/test_files.h"

namespace lockstep::checkpoint {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;
namespace fs = std::filesystem;
using Json = nlohmann::json;

class ReaderTest : public testing::Test {
 protected:
  ReaderTest() {
    Writer writer(Group(), path_);
    writer.add_tensors("model.safetensors", {{"w", weight_}, {"b", at::ones({3}, at::kHalf)}});
    writer.add_json("state.json", {{"epoch", 3}});
    writer.commit({{"step", 12}});
  }

  static void refuses(const std::function<void()>& action, const std::string& what) {
    EXPECT_THAT(action, ThrowsMessage<CheckpointError>(HasSubstr(what)));
  }
  void does_not_open(const std::string& what) {
    refuses([&] { Reader reader(path_); }, what);
  }

  TestFolder folder_;
  fs::path path_ = folder_ / "step_12";
  at::Tensor weight_ = at::arange(6, at::kFloat).reshape({2, 3});
};

TEST_F(ReaderTest, ReturnsSavedContents) {
  const Reader reader(path_, storage::Verify::kFull);
  EXPECT_EQ(reader.path(), path_);
  EXPECT_EQ(reader.meta(), Json({{"step", 12}}));
  EXPECT_EQ(reader.world_size(), 1);
  EXPECT_EQ(reader.sequence(), 1);
  EXPECT_THAT(reader.files(), ElementsAre("model.safetensors", "state.json"));
  EXPECT_TRUE(reader.has("state.json"));
  EXPECT_FALSE(reader.has("other.json"));
  const NamedTensors tensors = reader.tensors("model.safetensors");
  ASSERT_EQ(tensors.size(), 2U);
  EXPECT_EQ(tensors[0].name, "w");
  EXPECT_TRUE(at::equal(tensors[0].tensor, weight_));
  EXPECT_TRUE(at::equal(tensors[1].tensor, at::ones({3}, at::kHalf)));
  EXPECT_EQ(reader.json("state.json"), Json({{"epoch", 3}}));
  refuses([&] { reader.json("other.json"); }, "has no file \"other.json\"");
  refuses([&] { reader.tensors("state.json"); }, "state.json");
}

TEST_F(ReaderTest, EachDamagedTensorIsFoundByExactlyOneShareOfTheVerification) {
  const fs::path path = folder_ / "many";
  constexpr int kTensors = 9;
  Writer writer(Group(), path);
  NamedTensors written;
  for (int64_t i = 0; i < kTensors; ++i) {
    written.push_back({"t" + std::to_string(i), at::full({1 + i * i}, i, at::kByte)});
  }
  writer.add_tensors("many.safetensors", written);
  writer.commit(Json::object());
  const fs::path file = path / "many.safetensors";
  const auto seen_by = [&](const VerificationShare& share) {
    try {
      Reader(path).tensor_set("many", 2, share);
      return 0;
    } catch (const CheckpointError& error) {
      EXPECT_THAT(error.what(), HasSubstr("is damaged"));
      return 1;
    }
  };
  size_t last_byte = fs::file_size(file);
  for (int64_t damaged = kTensors - 1; damaged >= 0; --damaged) {
    storage::flip_bit(file, last_byte - 1);
    for (const int of : {1, 2, 4, 20}) {
      int seen = 0;
      for (int index = 0; index < of; ++index) {
        seen += seen_by({.index = index, .count = of});
      }
      EXPECT_EQ(seen, 1) << damaged << " among " << of;
    }
    storage::flip_bit(file, last_byte - 1);
    last_byte -= static_cast<size_t>(1 + damaged * damaged);
  }
  const NamedTensors read = Reader(path).tensor_set("many", 1, {.index = 1, .count = 3});
  ASSERT_EQ(read.size(), written.size());
  for (size_t i = 0; i < read.size(); ++i) {
    EXPECT_TRUE(at::equal(read[i].tensor, written[i].tensor)) << i;
  }
}

TEST_F(ReaderTest, SeesEveryFlippedBit) {
  for (const char* name : {"model.safetensors", "state.json"}) {
    for (size_t bit = 0; bit < 8 * fs::file_size(path_ / name); ++bit) {
      storage::flip_bit(path_ / name, bit / 8, static_cast<int>(bit % 8));
      const Reader reader(path_);
      EXPECT_THROW(Reader(path_, storage::Verify::kFull), CheckpointError)
          << name << " bit " << bit;
      if (std::string(name) == "state.json") {
        EXPECT_THROW(reader.json(name), CheckpointError) << bit;
      } else {
        EXPECT_THROW(reader.tensors(name), CheckpointError) << bit;
      }
      storage::flip_bit(path_ / name, bit / 8, static_cast<int>(bit % 8));
    }
  }
  EXPECT_NO_THROW(Reader(path_, storage::Verify::kFull));
}

TEST_F(ReaderTest, NamesTheDamagedTensor) {
  const storage::SafetensorsMap file(path_ / "model.safetensors");
  storage::flip_bit(path_ / "model.safetensors", file.bytes().size() - 1);
  refuses(
      [&] { Reader(path_).tensors("model.safetensors"); },
      "model.safetensors: \"b\"] is damaged; its content has crc32c");
}

TEST_F(ReaderTest, SeesAFileFromAnotherCheckpoint) {
  fs::remove(path_ / "model.safetensors");
  write_safetensors(
      path_ / "model.safetensors", {{"w", weight_ + 1}, {"b", at::ones({3}, at::kHalf)}});
  refuses([&] { Reader(path_, storage::Verify::kFull); }, "\"w\"] is damaged");
  fs::remove(path_ / "model.safetensors");
  write_safetensors(path_ / "model.safetensors", {{"v", weight_}, {"b", at::ones({3}, at::kHalf)}});
  refuses(
      [&] { Reader(path_, storage::Verify::kFull); },
      "\"v\"] has a tensor that the manifest does not list");
}

TEST_F(ReaderTest, DoesNotOpenWithATruncatedFile) {
  const auto bytes = fs::file_size(path_ / "model.safetensors");
  fs::resize_file(path_ / "model.safetensors", bytes - 1);
  does_not_open("model.safetensors] has the wrong size; got");
  fs::resize_file(path_ / "model.safetensors", 0);
  does_not_open("got 0 bytes");
}

TEST_F(ReaderTest, DoesNotOpenWithAMissingFile) {
  fs::remove(path_ / "state.json");
  does_not_open("state.json] cannot be opened; No such file");
}

TEST_F(ReaderTest, DoesNotOpenWithAFileReplacedByALinkOrAPipe) {
  fs::rename(path_ / "state.json", folder_ / "state.json");
  fs::create_symlink(folder_ / "state.json", path_ / "state.json");
  does_not_open("state.json] is a symbolic link");
  fs::remove(path_ / "state.json");
  ASSERT_EQ(mkfifo((path_ / "state.json").c_str(), 0600), 0);
  does_not_open("state.json] is not a regular file");
}

TEST_F(ReaderTest, IgnoresFilesOutsideTheManifest) {
  storage::write_bytes(folder_ / "outside.json", "{}");
  fs::create_symlink(folder_ / "outside.json", path_ / "extra.json");
  const Reader reader(path_, storage::Verify::kFull);
  EXPECT_FALSE(reader.has("extra.json"));
  refuses([&] { reader.json("extra.json"); }, "has no file");
  refuses([&] { reader.json("../outside.json"); }, "has no file");
}

TEST_F(ReaderTest, RefusesOtherFolders) {
  refuses([&] { Reader reader(folder_.path()); }, "is not a checkpoint");
  refuses([&] { Reader reader(folder_ / "absent"); }, "is not a checkpoint");
  fs::remove(path_ / "manifest.json");
  does_not_open("is not a checkpoint; it has no manifest.json");
}

}  // namespace
}  // namespace lockstep::checkpoint
