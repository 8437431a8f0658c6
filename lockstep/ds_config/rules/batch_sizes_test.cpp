// SPDX-License-Identifier: Apache-2.0
#include "lockstep/ds_config/rules/batch_sizes.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/ds_config/test_reading.h"

namespace lockstep::ds_config {
namespace {

using testing::HasSubstr;
using Size = std::optional<int64_t>;

GivenBatchSizes given(Size train, Size micro, Size steps) {
  const Origin origin{Origin::Kind::kFile, "here"};
  GivenBatchSizes sizes;
  sizes.train_batch_size = {train, train ? origin : Origin{}};
  sizes.train_micro_batch_size_per_gpu = {micro, micro ? origin : Origin{}};
  sizes.gradient_accumulation_steps = {steps, steps ? origin : Origin{}};
  return sizes;
}

/// "train micro steps", or what is wrong.
std::string resolved(Size train, Size micro, Size steps, int64_t world_size) {
  const ResolvedBatchSizes result = resolve_batch_sizes(given(train, micro, steps), world_size);
  if (!result.fault.empty()) {
    return result.fault;
  }
  return std::to_string(result.sizes.train_batch_size.value) + " " +
         std::to_string(result.sizes.train_micro_batch_size_per_gpu.value) + " " +
         std::to_string(result.sizes.gradient_accumulation_steps.value);
}

constexpr std::nullopt_t kNone = std::nullopt;

TEST(BatchSizes, AMissingSizeFollowsFromTheOthers) {
  EXPECT_EQ(resolved(32, 4, 2, 4), "32 4 2");
  EXPECT_EQ(resolved(32, 4, kNone, 4), "32 4 2");
  EXPECT_EQ(resolved(32, kNone, 2, 4), "32 4 2");
  EXPECT_EQ(resolved(kNone, 4, 2, 4), "32 4 2");
  EXPECT_EQ(resolved(32, kNone, kNone, 4), "32 8 1");
  EXPECT_EQ(resolved(kNone, 4, kNone, 4), "16 4 1");
}

TEST(BatchSizes, DerivedOnesSayFromWhat) {
  const auto sizes = resolve_batch_sizes(given(32, 4, kNone), 4).sizes;
  EXPECT_EQ(
      described(sizes.gradient_accumulation_steps.origin),
      "derived: train_batch_size / train_micro_batch_size_per_gpu / 4 ranks");
  EXPECT_EQ(described(sizes.train_batch_size.origin), "here");
  const auto alone = resolve_batch_sizes(given(32, kNone, kNone), 4).sizes;
  EXPECT_EQ(described(alone.gradient_accumulation_steps.origin), "default");
  EXPECT_EQ(
      described(alone.train_micro_batch_size_per_gpu.origin),
      "derived: train_batch_size / 4 ranks / gradient_accumulation_steps");
}

TEST(BatchSizes, InconsistentSizesAreAnErrorWithConsistentOnes) {
  EXPECT_EQ(
      resolved(10, kNone, kNone, 4),
      "batch sizes do not match; got train_batch_size 10, expected "
      "train_micro_batch_size_per_gpu * gradient_accumulation_steps * ranks, in whole numbers = N "
      "* 1 * 4; try train_batch_size 8 or 12");
  EXPECT_THAT(resolved(3, kNone, kNone, 4), HasSubstr("try train_batch_size 4"));
  EXPECT_THAT(resolved(30, 4, 2, 4), HasSubstr("ranks = 4 * 2 * 4; try train_batch_size 32"));
  EXPECT_THAT(resolved(30, 4, kNone, 4), HasSubstr("4 * N * 4; try train_batch_size 16 or 32"));
  EXPECT_THAT(resolved(30, kNone, 3, 4), HasSubstr("N * 3 * 4; try train_batch_size 24 or 36"));
}

TEST(BatchSizes, OneOfTwoMustBeGiven) {
  EXPECT_THAT(resolved(kNone, kNone, kNone, 1), HasSubstr("neither train_batch_size nor"));
  EXPECT_THAT(resolved(kNone, kNone, 2, 1), HasSubstr("neither train_batch_size nor"));
  EXPECT_THAT(
      lines_of(reading_of(R"({"train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"})")
                   .errors),
      HasSubstr("[ds.json:1:22] neither train_batch_size nor"));
}

TEST(BatchSizes, SizesThatNoNumberHoldsAreAnError) {
  const int64_t large = int64_t{1} << 40;
  EXPECT_THAT(resolved(kNone, large, large, 2), HasSubstr("exceeds 64 bits"));
}

TEST(BatchSizes, TheErrorIsAtTheSizeAndReportedOnce) {
  EXPECT_THAT(
      lines_of(reading_of("{\n\"train_batch_size\": 7}", 2).errors),
      HasSubstr("[ds.json:2:21] batch"));
  EXPECT_EQ(reading_of(R"({"train_batch_size": 1.5})").errors.size(), 1U);
}

TEST(BatchSizes, WithoutAWorldTheyAreNotResolved) {
  const Reading reading = reading_of(R"({"train_batch_size": 7})", kNone);
  EXPECT_EQ(lines_of(reading.errors), "");
  EXPECT_EQ(reading.config.batch.train_batch_size.value, 0);
}

/// What DeepSpeed itself made of the same sizes: tests/golden/make_ds_config.py.
TEST(BatchSizes, AreThoseOfDeepSpeed) {
  std::ifstream file(LOCKSTEP_SOURCE_DIR "/tests/golden/ds_config.json");
  const nlohmann::json golden = nlohmann::json::parse(file);
  const auto size = [](const nlohmann::json& value) {
    return value.is_null() ? Size() : Size(value.get<int64_t>());
  };
  size_t right = 0;
  for (const nlohmann::json& entry : golden.at("batch_sizes")) {
    const auto& asked = entry.at("given");
    const auto result = resolve_batch_sizes(
        given(size(asked[0]), size(asked[1]), size(asked[2])), entry.at("world_size"));
    EXPECT_EQ(result.fault.empty(), !entry.at("resolved").is_null()) << entry << result.fault;
    if (!entry.at("resolved").is_null()) {
      const BatchSizes& sizes = result.sizes;
      const nlohmann::json ours = {
          sizes.train_batch_size.value,
          sizes.train_micro_batch_size_per_gpu.value,
          sizes.gradient_accumulation_steps.value};
      EXPECT_EQ(ours, entry.at("resolved")) << entry;
      ++right;
    }
  }
  EXPECT_GT(right, 20U);
}

}  // namespace
}  // namespace lockstep::ds_config
