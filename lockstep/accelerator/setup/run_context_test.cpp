// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/base/error.h"

namespace lockstep::internal {
namespace {

TEST(RngTypes, RefuseAGeneratorThatLoadersDoNotHave) {
  EXPECT_THROW(
      Accelerator({.rng_types = {data::RngType::kGenerator}}, WorldSpec{}, Group()), ConfigError);
}

}  // namespace
}  // namespace lockstep::internal
