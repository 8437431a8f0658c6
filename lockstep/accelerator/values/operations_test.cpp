// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/values/operations.h"

#include <cmath>
#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <ATen/ATen.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/thread/ranks.h"

namespace lockstep {
namespace {

using nlohmann::json;

TEST(Gather, ConcatenatesInRankOrderWhateverTheMemoryLayout) {
  ranks(3, [](Group group) {
    const at::Tensor columns = at::arange(6).reshape({3, 2}).t() + 10 * group.rank();
    const at::Tensor all = gather(group, columns);
    ASSERT_EQ(all.sizes(), at::IntArrayRef({6, 3}));
    EXPECT_TRUE(at::equal(all.narrow(0, 4, 2), at::arange(6).reshape({3, 2}).t() + 20));
    EXPECT_EQ(gather(group, at::full({}, group.rank())).sizes(), at::IntArrayRef({3}));
  });
}

TEST(GatherRows, TakesRaggedTensorsAndKeepsTheRowsAskedFor) {
  ranks(3, [](Group group) {
    const std::vector<int64_t> rows = {2, 2, 1};
    const std::vector<int64_t> keep = {2, 1, 0};
    const at::Tensor mine = at::full({rows[group.rank()], 4}, group.rank(), at::kLong);
    const at::Tensor all = gather_rows(group, mine, rows, keep);
    EXPECT_TRUE(at::equal(all.select(1, 3), at::tensor({0, 0, 1}, at::kLong)));
    EXPECT_THROW(gather_rows(group, at::ones({7}), rows, keep), ConfigError);
    group.barrier();
  });
}

TEST(Reduce, WorksOnACopy) {
  ranks(2, [](Group group) {
    const at::Tensor mine = at::full({2}, group.rank() + 1.0);
    EXPECT_TRUE(at::equal(reduce(group, mine, ReduceOp::kSum), at::full({2}, 3.0)));
    EXPECT_TRUE(at::equal(reduce(group, mine, ReduceOp::kAvg), at::full({2}, 1.5)));
    EXPECT_TRUE(at::equal(mine, at::full({2}, group.rank() + 1.0)));
    EXPECT_TRUE(at::equal(broadcast(group, mine, 1), at::full({2}, 2.0)));
    EXPECT_TRUE(at::equal(mine, at::full({2}, group.rank() + 1.0)));
  });
}

TEST(PadAcrossProcesses, PadsOneDimensionToTheLargest) {
  ranks(3, [](Group group) {
    const at::Tensor mine = at::ones({2, group.rank() + 1});
    const at::Tensor behind = pad_across_processes(group, mine, 1, -1);
    EXPECT_EQ(behind.sizes(), at::IntArrayRef({2, 3}));
    EXPECT_EQ(behind.sum().item<double>(), 2 * (group.rank() + 1) - 2 * (2 - group.rank()));
    const at::Tensor before = pad_across_processes(group, mine, -1, 0, /*pad_first=*/true);
    EXPECT_EQ(before[0][2].item<double>(), 1);
    EXPECT_EQ(before[0][0].item<double>(), group.rank() == 2 ? 1 : 0);
    EXPECT_THROW(pad_across_processes(group, mine, 2), ConfigError);
    group.barrier();
  });
}

TEST(GatherObject, KeepsEveryValueAndFlattensOneLevelOfLists) {
  ranks(2, [](Group group) {
    const auto values = gather_object(group, {{"rank", group.rank()}, {"text", "ä\n"}});
    ASSERT_EQ(values.size(), 2U);
    EXPECT_EQ(values[1]["rank"], 1);
    EXPECT_EQ(values[0]["text"], "ä\n");
    const auto flat = gather_object(group, json::array({group.rank(), json::array({7})}));
    EXPECT_EQ(json(flat), json::parse("[0, [7], 1, [7]]"));
    const auto nan = gather_object(group, std::nan(""));
    EXPECT_TRUE(std::isnan(nan[1].get<double>()));
    EXPECT_EQ(
        broadcast_object(group, group.rank() == 1 ? json("from one") : json(), 1), "from one");
  });
}

/// What one of two ranks throws and the other one hears.
void expect_refusal(
    const std::function<void(Group&)>& operation,
    const std::string& own,
    const std::string& others) {
  ranks(2, [&](Group group) {
    const bool refuses = group.rank() == 1;
    try {
      operation(group);
      ADD_FAILURE() << "no error on rank " << group.rank();
    } catch (const ConfigError& error) {
      EXPECT_TRUE(refuses) << error.what();
      EXPECT_THAT(error.what(), ::testing::HasSubstr(own));
    } catch (const CommError& error) {
      EXPECT_FALSE(refuses) << error.what();
      EXPECT_THAT(error.what(), ::testing::HasSubstr(others));
    }
  });
}

TEST(Operations, ARefusalOfOneRankIsReportedToTheOthers) {
  expect_refusal(
      [](Group& group) {
        gather_rows(group, at::ones({group.rank() == 1 ? 1 : 2}), {2, 2}, {2, 2});
      },
      "expected 2 rows; got a tensor of [1]",
      "rank 1 calls all_gather with an invalid argument, a tensor of float[1]");
  expect_refusal(
      [](Group& group) { gather(group, group.rank() == 1 ? at::Tensor() : at::ones({2})); },
      "the tensor is undefined",
      "rank 1 calls all_gather with an invalid argument");
  expect_refusal(
      [](Group& group) {
        pad_across_processes(group, group.rank() == 1 ? at::ones({}) : at::ones({2}));
      },
      "no dimension 0",
      "rank 1 calls all_reduce with an invalid argument");
}

TEST(GroupOfOne, GetsItsInputBack) {
  Group group;
  const at::Tensor tensor = at::ones({});
  EXPECT_TRUE(gather(group, tensor).is_same(tensor));
  EXPECT_TRUE(reduce(group, tensor, ReduceOp::kAvg).is_same(tensor));
  EXPECT_TRUE(broadcast(group, tensor).is_same(tensor));
  EXPECT_EQ(gather_object(group, 5), std::vector<json>{5});
  EXPECT_THROW(gather(group, at::Tensor()), ConfigError);
}

}  // namespace
}  // namespace lockstep
