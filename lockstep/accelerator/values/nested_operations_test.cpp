// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/values/nested_operations.h"

#include <map>
#include <string>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Functions.h>

#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Sample {
  at::Tensor image;
  std::map<std::string, std::vector<at::Tensor>> extras;
  LOCKSTEP_FIELDS(image, extras)
};
static_assert(NestedTensors<Sample>);
static_assert(NestedTensors<std::tuple<at::Tensor, std::vector<at::Tensor>>>);
static_assert(!NestedTensors<std::pair<at::Tensor, std::string>>);

Sample sample(float value) {
  return {at::full({2, 3}, value), {{"boxes", {at::full({1}, value), at::full({2}, -value)}}}};
}

TEST(NestedOperations, GatherReduceBroadcastAndPadReachEveryTensor) {
  accelerated_ranks(2, {.debug = true}, [](Accelerator& accelerator) {
    const auto mine = static_cast<float>(accelerator.process_index() + 1);
    const Sample all = accelerator.gather(sample(mine));
    EXPECT_EQ(all.image.size(0), 4);
    EXPECT_EQ(all.image[3][0].item<float>(), 2);
    EXPECT_EQ(all.extras.at("boxes")[1].size(0), 4);
    EXPECT_EQ(accelerator.reduce(sample(mine)).extras.at("boxes")[1][0].item<float>(), -3);
    EXPECT_EQ(accelerator.broadcast(sample(mine), 1).image[0][0].item<float>(), 2);
    const std::vector<at::Tensor> ragged{at::ones({accelerator.process_index() + 1})};
    EXPECT_EQ(accelerator.pad_across_processes(ragged)[0].size(0), 2);
  });
}

TEST(NestedOperations, VectorsOfDifferentLengthsAreAnErrorOnAllRanks) {
  accelerated_ranks(3, {}, [](Accelerator& accelerator) {
    const bool longer = accelerator.process_index() == 1;
    const std::vector<at::Tensor> value(longer ? 3 : 2, at::ones({2}));
    const auto expect_refusal = [&](const auto& operation) {
      EXPECT_THAT(
          operation,
          ::testing::ThrowsMessage<ConfigError>(HasSubstr("got 2 on ranks 0, 2, 3 on rank 1")));
    };
    expect_refusal([&] { std::ignore = accelerator.gather(value); });
    expect_refusal([&] { std::ignore = accelerator.gather_for_metrics(value); });
    expect_refusal([&] { std::ignore = accelerator.reduce(value); });
    expect_refusal([&] { std::ignore = accelerator.broadcast(value); });
    expect_refusal([&] { std::ignore = accelerator.pad_across_processes(value); });
    EXPECT_EQ(accelerator.gather(std::vector<at::Tensor>{at::ones({2})})[0].size(0), 6);
  });
}

TEST(DebugMode, NamesTheArgumentOfEachProcess) {
  accelerated_ranks(2, {.debug = true}, [](Accelerator& accelerator) {
    std::map<std::string, at::Tensor> value;
    value[accelerator.is_main_process() ? "loss" : "accuracy"] = at::ones({2});
    try {
      std::ignore = accelerator.gather(value);
      ADD_FAILURE() << "different keys were not seen";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 0: {loss: Float[2]}"));
      EXPECT_THAT(error.what(), HasSubstr("rank 1: {accuracy: Float[2]}"));
    }
  });
}

TEST(DebugMode, SeesKeysWithinOtherValuesAndDtypesToBePadded) {
  accelerated_ranks(2, {.debug = true}, [](Accelerator& accelerator) {
    const bool main = accelerator.is_main_process();
    const std::vector<std::map<std::string, at::Tensor>> value{{{main ? "a" : "b", at::ones({1})}}};
    EXPECT_THROW(std::ignore = accelerator.reduce(value), ConfigError);
    EXPECT_THROW(
        std::ignore =
            accelerator.pad_across_processes(at::ones({1}, main ? at::kFloat : at::kLong)),
        ConfigError);
    EXPECT_NO_THROW(std::ignore = accelerator.pad_across_processes(at::ones({main ? 1 : 2})));
  });
}

TEST(NestedOperations, SliceConcatenateAndFindBatchSizeUndoEachOther) {
  const Sample whole = sample(3);
  EXPECT_EQ(find_batch_size(whole), 2);
  const std::vector<at::Tensor> rows{at::arange(5), at::arange(10).reshape({5, 2})};
  const auto again =
      concatenate<std::vector<at::Tensor>>({slice_tensors(rows, 0, 2), slice_tensors(rows, 2, 5)});
  EXPECT_TRUE(at::equal(again[1], rows[1]));
  EXPECT_THROW(concatenate(std::vector<at::Tensor>{}), ConfigError);
  EXPECT_THROW(find_batch_size(std::vector<at::Tensor>{at::ones({})}), ConfigError);
}

TEST(NestedOperations, ConvertToFp32LeavesIntegers) {
  const std::pair<at::Tensor, at::Tensor> value{at::ones({1}, at::kHalf), at::ones({1}, at::kLong)};
  const auto converted = convert_to_fp32(value);
  EXPECT_EQ(converted.first.scalar_type(), at::kFloat);
  EXPECT_EQ(converted.second.scalar_type(), at::kLong);
}

TEST(SplitBetweenProcesses, GivesTheFirstRanksOneMoreAndPadsWithTheLast) {
  const std::vector<int> all{0, 1, 2, 3, 4};
  EXPECT_THAT(split_between_processes(all, 0, 3, false), ElementsAre(0, 1));
  EXPECT_THAT(split_between_processes(all, 2, 3, false), ElementsAre(4));
  EXPECT_THAT(split_between_processes(all, 2, 3, true), ElementsAre(4, 4));
  EXPECT_THAT(split_between_processes(std::vector<int>{7}, 2, 3, true), ElementsAre(7));
  EXPECT_THAT(split_between_processes(all, 1, 4, true), ElementsAre(2, 4)) << "as Accelerate";
  EXPECT_THAT(split_between_processes(all, 0, 1, true), ElementsAre(0, 1, 2, 3, 4));
  const at::Tensor rows = at::arange(5);
  EXPECT_TRUE(at::equal(split_between_processes(rows, 1, 2, true), at::tensor({3, 4, 4})));
  const std::map<std::string, std::vector<int>> map{{"a", {1, 2, 3}}, {"b", {4, 5, 6}}};
  EXPECT_THAT(split_between_processes(map, 1, 2, false).at("b"), ElementsAre(6));
  const std::map<std::string, std::vector<int>> uneven{{"a", {1}}, {"b", {4, 5}}};
  EXPECT_THROW(split_between_processes(uneven, 0, 2, false), ConfigError);
}

}  // namespace
}  // namespace lockstep
