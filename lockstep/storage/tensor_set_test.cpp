// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/tensor_set.h"

#include <numeric>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/memory/crc32c.h"
#include "lockstep/storage/safetensors/slices.h"
#include "lockstep/storage/test_checkpoints.h"

namespace lockstep::storage {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;
namespace fs = std::filesystem;

/// 0, 1, 2 ... as elements of a tensor of that many.
std::vector<float> counting_floats(int64_t begin, int64_t end) {
  std::vector<float> values(static_cast<size_t>(end - begin));
  std::iota(values.begin(), values.end(), static_cast<float>(begin));
  return values;
}

OutputTensor full(const std::string& name, const std::vector<int64_t>& shape) {
  const int64_t elements = element_count(shape).value();
  return output_tensor(name, Dtype::kF32, shape, raw_bytes(counting_floats(0, elements)));
}

OutputTensor slice(const std::string& name, int64_t begin, int64_t end) {
  return output_tensor(name, Dtype::kF32, {end - begin}, raw_bytes(counting_floats(begin, end)));
}

TestFile sliced(std::vector<OutputTensor> tensors, const Slices& slices) {
  return {std::move(tensors), {{kSlicesKey, render_slices("test", slices)}}};
}

/// Returns the elements of a tensor, assembled from its slices.
std::vector<float> elements_of(const TensorSet& set, const std::string& name) {
  std::string bytes;
  for (const TensorSlice& slice : set.tensor(name).slices) {
    EXPECT_EQ(static_cast<size_t>(slice.begin) * sizeof(float), bytes.size());
    EXPECT_EQ(set.bytes(slice).size(), static_cast<size_t>(slice.count) * sizeof(float));
    bytes += set.bytes(slice);
  }
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

class TensorSetTest : public testing::Test {
 protected:
  using Files = std::map<std::string, TestFile>;

  StoredCheckpoint save(const Files& files) {
    commit_checkpoint(path_, {{"step", 1}}, files);
    return StoredCheckpoint(path_);
  }
  void refuses(const Files& files, const std::string& where, const std::string& what) {
    const StoredCheckpoint checkpoint = save(files);
    expect_refused([&] { TensorSet(checkpoint, "opt"); }, "[" + (path_ / where).string(), what);
  }
  /// Returns two files with the elements of `w`, which has 12, up to `end` and from `begin`.
  static Files halves(int64_t end, int64_t begin) {
    return {
        {kFirst, sliced({slice("w", 0, end)}, {{"w", {{4, 3}, 0}}})},
        {kSecond, sliced({slice("w", begin, 12)}, {{"w", {{4, 3}, begin}}})}};
  }

  static constexpr const char* kFirst = "opt-00001-of-00002.safetensors";
  static constexpr const char* kSecond = "opt-00002-of-00002.safetensors";
  TestFolder folder_;
  fs::path path_ = folder_ / "step_1";
};

TEST_F(TensorSetTest, OneFileOfFullTensorsIsASet) {
  const StoredCheckpoint checkpoint =
      save({{"opt.safetensors", {{full("w", {2, 3}), full("b", {}), full("none", {0, 3})}}}});
  const TensorSet set(checkpoint, "opt");
  EXPECT_THAT(set.files(), ElementsAre("opt.safetensors"));
  ASSERT_EQ(set.tensors().size(), 3U);
  EXPECT_EQ(set.tensors()[0].name, "b");
  EXPECT_EQ(set.tensors()[1].name, "none");
  EXPECT_THAT(set.tensor("w").shape, ElementsAre(2, 3));
  EXPECT_EQ(set.tensor("w").dtype, Dtype::kF32);
  EXPECT_EQ(set.tensor("w").elements(), 6);
  EXPECT_EQ(set.tensor("w").slices.size(), 1U);
  EXPECT_EQ(elements_of(set, "w"), counting_floats(0, 6));
  EXPECT_EQ(elements_of(set, "b"), counting_floats(0, 1));
  EXPECT_THAT(set.tensor("none").slices, IsEmpty());
  EXPECT_EQ(set.tensor("none").elements(), 0);
  EXPECT_TRUE(set.has("w"));
  EXPECT_FALSE(set.has("v"));
  EXPECT_THAT(
      [&] { set.tensor("v"); },
      ThrowsMessage<CheckpointError>(HasSubstr("\"v\"] has no such tensor; the set has 3")));
}

TEST_F(TensorSetTest, SlicesInSeveralFilesAreOneTensor) {
  // The first rank has the last elements of `w`, the second none, the third the first.
  const StoredCheckpoint checkpoint = save(
      {{"opt-00001-of-00003.safetensors",
        sliced({slice("w", 7, 12), full("a", {2})}, {{"w", {{4, 3}, 7}}})},
       {"opt-00002-of-00003.safetensors",
        sliced({slice("w", 4, 4), slice("v", 0, 5)}, {{"w", {{4, 3}, 4}}, {"v", {{5}, 0}}})},
       {"opt-00003-of-00003.safetensors", sliced({slice("w", 0, 7)}, {{"w", {{4, 3}, 0}}})}});
  const TensorSet set(checkpoint, "opt");
  EXPECT_EQ(set.files().size(), 3U);
  EXPECT_THAT(set.tensor("w").shape, ElementsAre(4, 3));
  ASSERT_EQ(set.tensor("w").slices.size(), 2U);
  EXPECT_EQ(set.tensor("w").slices[0].file, 2U);
  EXPECT_EQ(set.tensor("w").slices[1].file, 0U);
  EXPECT_EQ(set.tensor("w").elements(), 12);
  EXPECT_EQ(elements_of(set, "w"), counting_floats(0, 12));
  EXPECT_EQ(elements_of(set, "v"), counting_floats(0, 5));
  EXPECT_EQ(elements_of(set, "a"), counting_floats(0, 2));
}

TEST_F(TensorSetTest, StemsThatBeginAlikeAreDifferentSets) {
  const StoredCheckpoint checkpoint = save(
      {{"opt.safetensors", {{full("a", {1})}}},
       {"opt_1.safetensors", {{full("b", {1})}}},
       {"opt-1.safetensors", {{full("c", {1})}}},
       {"opt-x-of-y.safetensors", {{full("c", {1})}}},
       {"opt-0001-of-0002.safetensors", {{full("c", {1})}}},
       {"opt-00003-of-00002.safetensors", {{full("c", {1})}}},
       {"opt-00000-of-00002.safetensors", {{full("c", {1})}}},
       {"opt-00001-of-99999999999999999999.safetensors", {{full("c", {1})}}},
       {"opt-00001-of-00002.safetensors.x", {{full("c", {1})}}},
       {"opt_2-00001-of-00001.safetensors", {{full("d", {1})}}}});
  EXPECT_TRUE(TensorSet(checkpoint, "opt").has("a"));
  EXPECT_EQ(TensorSet(checkpoint, "opt").tensors().size(), 1U);
  EXPECT_TRUE(TensorSet(checkpoint, "opt_1").has("b"));
  EXPECT_TRUE(TensorSet(checkpoint, "opt_2").has("d"));
  for (const char* stem : {"opt", "opt_1", "opt_2"}) {
    EXPECT_TRUE(TensorSet::exists(checkpoint, stem)) << stem;
  }
  for (const char* stem : {"op", "opt_", "opt_3", "state", ""}) {
    EXPECT_FALSE(TensorSet::exists(checkpoint, stem)) << stem;
  }
  EXPECT_THAT(
      TensorSet::stems(checkpoint),
      ElementsAre(
          "opt",
          "opt-00000-of-00002",
          "opt-00001-of-99999999999999999999",
          "opt-00003-of-00002",
          "opt-0001-of-0002",
          "opt-1",
          "opt-x-of-y",
          "opt_1",
          "opt_2"));
  EXPECT_THAT(
      [&] { TensorSet(checkpoint, "scaler"); },
      ThrowsMessage<CheckpointError>(HasSubstr("holds neither scaler.safetensors nor")));
}

TEST_F(TensorSetTest, EveryPartMustBeThereAndOfOneCount) {
  const TestFile file{{full("a", {1})}};
  refuses({{kSecond, file}}, kFirst, "is missing; manifest.json lists 1 of 2 parts");
  refuses({{kFirst, file}}, kSecond, "is missing");
  refuses(
      {{"opt-00001-of-99999.safetensors", file}}, "opt-00002-of-99999.safetensors", "is missing");
  refuses({{"opt.safetensors", file}, {kFirst, file}}, "opt.safetensors", "exists next to");
  refuses(
      {{kFirst, file}, {"opt-00001-of-00003.safetensors", file}},
      "opt-00001-of-00003.safetensors",
      "is one of 3 parts, but " + std::string(kFirst) + " is one of 2");
}

TEST_F(TensorSetTest, EachElementMustBeInExactlyOneSlice) {
  EXPECT_EQ(elements_of(TensorSet(save(halves(5, 5)), "opt"), "w"), counting_floats(0, 12));
  refuses(halves(5, 6), kSecond, "slices that leave a gap at elements 5 to 6 of [4, 3]");
  refuses(halves(6, 5), kSecond, "slices that overlap at elements 5 to 6 of [4, 3]");
  refuses(halves(12, 0), kSecond, "slices that overlap");
  const TestFile first = sliced({slice("w", 0, 5)}, {{"w", {{4, 3}, 0}}});
  refuses(
      {{"opt.safetensors", first}}, "opt.safetensors: \"w\"]", "leave a gap at elements 5 to 12");
  const TestFile empty = sliced({slice("w", 0, 0)}, {{"w", {{4, 3}, 0}}});
  refuses({{"opt.safetensors", empty}}, "opt.safetensors", "at elements 0 to 12");
  refuses(
      {{kFirst, {{full("w", {2})}}}, {kSecond, {{full("w", {2})}}}},
      kSecond,
      "slices that overlap");
}

TEST_F(TensorSetTest, SlicesOfOneTensorMustAgreeOnIt) {
  const TestFile first = sliced({slice("w", 0, 6)}, {{"w", {{4, 3}, 0}}});
  refuses(
      {{kFirst, first}, {kSecond, sliced({slice("w", 6, 12)}, {{"w", {{3, 4}, 6}}})}},
      std::string(kSecond) + ": \"w\"]",
      "got F32 [3, 4], expected F32 [4, 3]");
  const OutputTensor half = output_tensor("w", Dtype::kBF16, {6}, std::string(12, 'x'));
  refuses(
      {{kFirst, first}, {kSecond, sliced({half}, {{"w", {{4, 3}, 6}}})}},
      kSecond,
      "got BF16 [4, 3], expected F32 [4, 3]");
  refuses({{kFirst, first}, {kSecond, {{slice("w", 6, 12)}}}}, kSecond, "got F32 [6]");
}

TEST_F(TensorSetTest, MetadataMustFitTheEntries) {
  const auto with = [](const std::string& text) {
    return Files{{"opt.safetensors", {{full("w", {2, 3})}, {{kSlicesKey, text}}}}};
  };
  refuses(with("{"), "opt.safetensors: lockstep.slices", "is not valid JSON");
  refuses(with("[]"), "opt.safetensors", "expected an object");
  refuses(with(R"({"v":{"begin":0,"shape":[6]}})"), "opt.safetensors: \"v\"", "has no such tensor");
  refuses(
      with(R"({"w":{"begin":0,"shape":[6]}})"),
      "opt.safetensors: \"w\"",
      "a slice of shape [2, 3]; expected one dimension");
  refuses(
      {{"opt.safetensors", sliced({slice("w", 0, 6)}, {{"w", {{5}, 0}}})}},
      "opt.safetensors",
      "beyond the end of the tensor; got elements 0 to 6 of 5");
  refuses(
      {{"opt.safetensors", sliced({slice("w", 0, 2)}, {{"w", {{5}, 4}}})}},
      "opt.safetensors",
      "got elements 4 to 6 of 5");
}

TEST_F(TensorSetTest, ATensorWithoutElementsMustNotBeLargerThanAnyMemoryEither) {
  const SafetensorsHeader header{
      .metadata = {}, .tensors = {{"w", Dtype::kU8, {0, int64_t{1} << 58}, 0, 0}}};
  const std::string bytes = render_safetensors_header("test", header);
  fs::create_directories(path_);
  write_bytes(path_ / "opt.safetensors", bytes);
  const FileSummary summary{.bytes = bytes.size(), .crc32c = crc32c(bytes), .tensors = {{"w", 0}}};
  const Manifest manifest{
      .sequence = 1,
      .world_size = 1,
      .meta = nlohmann::json::object(),
      .files = {{"opt.safetensors", summary}}};
  write_bytes(path_ / kManifestName, render_manifest("test", manifest));
  EXPECT_THAT(
      [&] { TensorSet(StoredCheckpoint(path_, Verify::kFull), "opt"); },
      ThrowsMessage<CheckpointError>(AllOf(
          HasSubstr("opt.safetensors: \"w\"]"),
          HasSubstr("[0, 288230376151711744], which has too many elements"))));
}

TEST_F(TensorSetTest, SeesEveryFlippedBitOfAHeaderWithoutTheData) {
  const StoredCheckpoint checkpoint = save(halves(5, 5));
  const size_t header = SafetensorsMap(path_ / kFirst).header_bytes().size();
  for (size_t bit = 0; bit < 8 * header; ++bit) {
    flip_bit(path_ / kFirst, bit / 8, static_cast<int>(bit % 8));
    EXPECT_THROW(TensorSet(checkpoint, "opt"), CheckpointError) << "bit " << bit;
    flip_bit(path_ / kFirst, bit / 8, static_cast<int>(bit % 8));
  }
  EXPECT_NO_THROW(TensorSet(checkpoint, "opt"));
}

TEST_F(TensorSetTest, FindsEveryFlippedBitOfARequestedSlice) {
  const StoredCheckpoint checkpoint = save(halves(5, 5));
  const size_t header = SafetensorsMap(path_ / kSecond).header_bytes().size();
  for (size_t byte = header; byte < fs::file_size(path_ / kSecond); ++byte) {
    flip_bit(path_ / kSecond, byte, static_cast<int>(byte % 8));
    const TensorSet set(checkpoint, "opt");
    const auto& slices = set.tensor("w").slices;
    EXPECT_EQ(set.bytes(slices[0]).size(), 20U) << "the other slice is intact";
    EXPECT_THAT(
        [&] { set.bytes(slices[1]); },
        ThrowsMessage<CheckpointError>(AllOf(HasSubstr(kSecond), HasSubstr("\"w\"] is damaged"))))
        << "byte " << byte;
    EXPECT_THROW(set.bytes(slices[1]), CheckpointError) << "asked again";
    flip_bit(path_ / kSecond, byte, static_cast<int>(byte % 8));
  }
}

TEST_F(TensorSetTest, ChecksASliceOnlyOnce) {
  const TensorSet set(save(halves(5, 5)), "opt");
  const TensorSlice& slice = set.tensor("w").slices[0];
  set.bytes(slice);
  // A private map shows what is written to the file as long as its pages were not written to.
  flip_bit(path_ / kFirst, set.file(0).header_bytes().size());
  EXPECT_NO_THROW(set.bytes(slice));
}

TEST_F(TensorSetTest, MayBeReadByManyThreads) {
  const TensorSet set(save(halves(5, 5)), "opt");
  std::vector<std::vector<float>> read(4);
  {
    std::vector<std::jthread> threads;
    for (auto& values : read) {
      threads.emplace_back([&set, &values] { values = elements_of(set, "w"); });
    }
  }
  EXPECT_THAT(read, testing::Each(counting_floats(0, 12)));
}

}  // namespace
}  // namespace lockstep::storage
