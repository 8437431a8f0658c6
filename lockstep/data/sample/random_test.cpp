// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/sample/random.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/thread/ranks.h"

namespace lockstep::data {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

at::Tensor drawn_after(uint64_t seed) {
  return at::rand({8}, at::make_generator<at::CPUGeneratorImpl>(seed));
}

TEST(SetSeed, SeedsTorchsDefaultGenerator) {
  set_seed(11);
  EXPECT_TRUE(at::equal(at::rand({8}), drawn_after(11)));
  set_seed(11, /*device_specific=*/true, 3);
  EXPECT_TRUE(at::equal(at::rand({8}), drawn_after(14)));
  set_seed(11, /*device_specific=*/false, 3);
  EXPECT_TRUE(at::equal(at::rand({8}), drawn_after(11)));
}

TEST(SynchronizeRngStates, GivesEveryRankRankZerosStateOfAGenerator) {
  ranks(3, [](Group group) {
    at::Generator own = at::make_generator<at::CPUGeneratorImpl>(100 + group.rank());
    at::rand({5}, own);
    synchronize_rng_states(group, {RngType::kGenerator}, own);
    at::Generator expected = at::make_generator<at::CPUGeneratorImpl>(100);
    at::rand({5}, expected);
    EXPECT_TRUE(at::equal(at::rand({8}, own), at::rand({8}, expected)));
  });
}

TEST(SynchronizeRngStates, GivesEveryRankRankZerosDefaultState) {
  set_seed(7);
  ranks(3, [](Group group) { synchronize_rng_states(group, {RngType::kTorch}); });
  EXPECT_TRUE(at::equal(at::rand({8}), drawn_after(7)));
}

TEST(SynchronizeRngStates, KeepsTheDefaultGeneratorOfAGroupOfOne) {
  Group alone;
  set_seed(7);
  synchronize_rng_states(alone, {RngType::kTorch});
  EXPECT_TRUE(at::equal(at::rand({8}), drawn_after(7)));
}

TEST(SynchronizeRngStates, RefusesMissingOnes) {
  Group alone;
  EXPECT_THROW(synchronize_rng_states(alone, {RngType::kGenerator}), ConfigError);
  if (!at::hasCUDA()) {
    EXPECT_THAT(
        [&] { synchronize_rng_states(alone, {RngType::kCuda}); },
        ThrowsMessage<ConfigError>(HasSubstr("no CUDA device")));
  }
}

TEST(RngType, IsReadFromItsName) {
  EXPECT_EQ(rng_type_of("torch"), RngType::kTorch);
  EXPECT_EQ(rng_type_of("cuda"), RngType::kCuda);
  EXPECT_EQ(rng_type_of("generator"), RngType::kGenerator);
  EXPECT_THAT(
      [] { rng_type_of("genrator"); },
      ThrowsMessage<ConfigError>(HasSubstr("did you mean 'generator'?")));
}

}  // namespace
}  // namespace lockstep::data
