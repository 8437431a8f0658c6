// SPDX-License-Identifier: Apache-2.0
#include "cli/selftest/check.h"

#include <fstream>
#include <limits>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/comm/thread/ranks.h"

namespace lockstep::selftest {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;

Rank rank_of(const Group& group, const std::filesystem::path& folder) {
  WorldSpec world;
  world.rank = world.local_rank = group.rank();
  world.size = world.local_size = group.size();
  return {world, group, folder};
}

/// Returns the results on each rank.
std::vector<std::vector<Result>> results_of(int size, const std::vector<Check>& checks) {
  const TestFolder folder;
  std::vector<std::vector<Result>> results(static_cast<size_t>(size));
  ranks(size, [&](const Group& group) {
    Rank rank = rank_of(group, folder.path());
    run_checks(rank, checks, [&](const Result& result) {
      results[static_cast<size_t>(group.rank())].push_back(result);
    });
  });
  return results;
}

std::vector<Check> all_checks() {
  std::vector<Check> checks = collective_checks();
  for (Check& check : training_checks()) {
    checks.push_back(std::move(check));
  }
  return checks;
}

TEST(SelfTest, EveryCheckHoldsInAnyWorld) {
  for (const int size : {1, 2, 3}) {
    for (const std::vector<Result>& results : results_of(size, collective_checks())) {
      EXPECT_EQ(results.size(), collective_checks().size());
      for (const Result& result : results) {
        EXPECT_THAT(result.failures, IsEmpty()) << result.failures.front().message;
      }
    }
  }
}

TEST(SelfTest, TheNamesOfChecksDiffer) {
  std::set<std::string> names;
  for (const Check& check : all_checks()) {
    EXPECT_TRUE(names.insert(check.name).second) << check.name;
  }
}

TEST(SelfTest, AFailureIsReportedToAllRanksWithRankGotAndExpected) {
  const std::vector<Check> checks = {
      {"broken",
       "",
       [](Rank& rank, Expect& expect) {
         at::Tensor sum = rank.group.all_reduce(at::ones({2}, at::kLong)).wait();
         sum[1] += rank.group.rank();  // Simulates a transport that is faulty on rank 1.
         expect.equal("all_reduce(sum) of Long", sum, at::full({2}, 2, at::kLong));
       }},
      {"thrown",
       "",
       [](Rank& rank, Expect&) {
         if (rank.group.rank() == 0) {
           throw CheckpointError("a/file", "is damaged");
         }
       }},
      {"sound", "", [](Rank& rank, Expect&) { rank.group.barrier(); }}};
  for (const std::vector<Result>& results : results_of(2, checks)) {
    ASSERT_EQ(results.size(), 3U);
    EXPECT_THAT(
        results[0].failures,
        ElementsAre(AllOf(
            Field(&RankFailure::rank, 1),
            Field(
                &RankFailure::message,
                "all_reduce(sum) of Long: got Long2[2, 3], expected Long2[2, 2]"))));
    EXPECT_THAT(
        results[1].failures,
        ElementsAre(AllOf(
            Field(&RankFailure::rank, 0),
            Field(&RankFailure::message, HasSubstr("[a/file] is damaged")))));
    EXPECT_THAT(results[2].failures, IsEmpty());
  }
}

TEST(SelfTest, ARankThatLosesTheOthersWritesAReport) {
  const TestFolder folder;
  const std::vector<Check> checks = {{"lost", "", [](Rank& rank, Expect&) {
                                        if (rank.group.rank() == 0) {
                                          rank.group.all_reduce(at::ones({2})).wait();
                                        } else {
                                          rank.group.all_reduce(at::ones({3})).wait();
                                        }
                                      }}};
  ranks(2, [&](const Group& group) {
    Rank rank = rank_of(group, folder.path());
    EXPECT_THROW(run_checks(rank, checks, [](const Result&) {}), CommError);
  });
  for (const char* name : {"lost_0.jsonl", "lost_1.jsonl"}) {
    std::ifstream file(folder / name);
    std::string line;
    std::getline(file, line);
    EXPECT_THAT(line, AllOf(HasSubstr("\"check\":\"lost\""), HasSubstr("[3]")));
  }
}

TEST(Expectation, KeepsTheFirstFailureAndSeesNaN) {
  Expect expect;
  expect.near("close", at::full({1}, 1.005), at::full({1}, 1.0), 1e-2);
  expect.equal("alike", "a", "a");
  EXPECT_EQ(expect.failure(), "");
  expect.near(
      "a NaN", at::full({1}, std::numeric_limits<float>::quiet_NaN()), at::full({1}, 1.0F), 1e-2);
  expect.is_true("later", false);
  EXPECT_THAT(expect.failure(), AllOf(HasSubstr("a NaN: got"), HasSubstr("expected Float1[1]")));
}

TEST(Expectation, TellsDtypesAndShapesApart) {
  Expect dtype;
  dtype.equal("x", at::ones({2}, at::kInt), at::ones({2}, at::kLong));
  EXPECT_THAT(dtype.failure(), HasSubstr("got Int2[1, 1], expected Long2[1, 1]"));
  Expect shape;
  shape.near("x", at::ones({2, 1}), at::ones({1, 2}), 1);
  EXPECT_THAT(shape.failure(), HasSubstr("got Float2x1[1, 1], expected Float1x2[1, 1]"));
}

}  // namespace
}  // namespace lockstep::selftest
