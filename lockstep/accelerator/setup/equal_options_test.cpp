// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/setup/equal_options.h"

#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/test_ranks.h"

namespace lockstep::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// An option that rank 1 sets, and its name and values in the message.
struct Difference {
  std::function<void(AcceleratorOptions&)> set;
  std::string name, of_rank_0, of_rank_1;
};

TEST(EqualOptions, AnOptionOfOneRankIsRefusedOnAllWhenTheyJoin) {
  const std::vector<Difference> differences = {
      {[](auto& o) { o.gradient_accumulation_steps = 4; }, "gradient_accumulation_steps", "1", "4"},
      {[](auto& o) { o.mixed_precision = Precision::kBF16; }, "mixed_precision", "no", "bf16"},
      {[](auto& o) { o.zero = ZeroPlugin{.stage = 2}; }, "zero.stage", "0", "2"},
      {[](auto& o) {
         o.fsdp_plugin = FsdpPlugin{.sharding_strategy = ShardingStrategy::kHybridShard};
       },
       "zero (whether it depends on the hosts)",
       "false",
       "true"},
      {[](auto& o) { o.split_batches = true; }, "split_batches", "false", "true"},
      {[](auto& o) { o.even_batches = false; }, "even_batches", "true", "false"},
      {[](auto& o) { o.dispatch_batches = true; }, "dispatch_batches", "false", "true"},
      {[](auto& o) { o.non_finite = NonFinitePolicy::kSkip; }, "non_finite", "ignore", "skip"},
      {[](auto& o) { o.data_parallel.cap_bytes = 1000; }, "cap_bytes", "26214400", "1000"},
      {[](auto& o) { o.data_parallel.comm_hook.type = CommHookType::kBf16; },
       "comm_hook.type",
       "none",
       "bf16"},
      {[](auto& o) { o.shared_parameters = true; }, "shared_parameters", "false", "true"},
      {[](auto& o) { o.debug = true; }, "debug", "false", "true"}};
  for (const Difference& difference : differences) {
    ranks(2, [&](Group group) {
      AcceleratorOptions options;
      if (group.rank() == 1) {
        difference.set(options);
      }
      WorldSpec world;
      world.rank = world.local_rank = group.rank();
      world.size = world.local_size = 2;
      EXPECT_THAT(
          error_of<ConfigError>([&] { Accelerator(options, world, group); }),
          AllOf(
              HasSubstr("[accelerator] the Accelerator's option "),
              HasSubstr(
                  difference.name + " must be equal on all ranks; rank 0 has " +
                  difference.of_rank_0 + ", rank 1 has " + difference.of_rank_1)))
          << "rank " << group.rank();
    });
  }
}

TEST(EqualOptions, FoldersAndTrackersMayDiffer) {
  ranks(2, [&](Group group) {
    WorldSpec world;
    world.rank = world.local_rank = group.rank();
    world.size = world.local_size = 2;
    AcceleratorOptions options;
    options.project_name = group.rank() == 0 ? "a" : "b";
    EXPECT_EQ(error_of<ConfigError>([&] { Accelerator(options, world, group); }), "no error");
  });
}

}  // namespace
}  // namespace lockstep::internal
