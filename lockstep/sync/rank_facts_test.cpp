// SPDX-License-Identifier: Apache-2.0
#include "lockstep/sync/rank_facts.h"

#include <cstdint>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ops/empty.h>

#include "lockstep/base/error.h"
#include "lockstep/base/test_errors.h"
#include "lockstep/comm/thread/ranks.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(DigestFlags, FindADifferenceInEveryDtypeAndReduction) {
  for (const at::ScalarType dtype :
       {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kByte}) {
    for (const bool differ : {false, true}) {
      ranks(3, [&](Group group) {
        const uint64_t own = differ && group.rank() == 2 ? 5 : 4;
        const at::Tensor flags = at::empty({DigestFlags::kCount}, dtype);
        DigestFlags::write(flags, own, group.rank() == 1);
        group.all_reduce(flags, dtype == at::kByte ? ReduceOp::kMax : ReduceOp::kAvg).wait();
        EXPECT_EQ(DigestFlags::read(flags).differ, differ) << dtype;
        EXPECT_TRUE(DigestFlags::read(flags).any_report) << dtype;
      });
    }
  }
}

TEST(DigestFlags, DependOnAllBitsOfTheDigest) {
  for (int bit = 0; bit < 64; ++bit) {
    ranks(2, [&](Group group) {
      const at::Tensor flags = at::empty({DigestFlags::kCount}, at::kByte);
      DigestFlags::write(flags, group.rank() == 0 ? 0 : uint64_t{1} << bit, false);
      group.all_reduce(flags, ReduceOp::kMax).wait();
      EXPECT_TRUE(DigestFlags::read(flags).differ) << bit;
      EXPECT_FALSE(DigestFlags::read(flags).any_report);
    });
  }
}

TEST(RankFacts, ADifferenceNamesBothRanksAndTheRemedy) {
  ranks(3, [](Group group) {
    const std::string rate = group.rank() == 2 ? "[0.2]" : "[0.1]";
    const std::string message = error_of<ConfigError>([&] {
      refuse_different_facts(
          group, {{"the size", "4", "resize"}, {"the rate", rate, "set it"}}, "step");
    });
    EXPECT_THAT(
        message,
        AllOf(
            HasSubstr("[step] the rate must be equal on all ranks"),
            HasSubstr("rank 0 has [0.1], rank 2 has [0.2]; set it")));
  });
}

}  // namespace
}  // namespace lockstep
