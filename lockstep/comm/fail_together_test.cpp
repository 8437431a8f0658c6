// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/fail_together.h"

#include <atomic>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/thread/ranks.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(FailTogether, AnErrorOfOneRankIsThrownOnAll) {
  ranks(3, [](Group group) {
    bool ran = false;
    fail_together(group, "offload", "no room", [&] { ran = true; });
    EXPECT_TRUE(ran);
    EXPECT_THAT(
        [&] {
          fail_together(group, "offload", "no room", [&] {
            if (group.rank() > 0) {
              throw std::runtime_error("disk " + std::to_string(group.rank()) + " is full");
            }
          });
        },
        ThrowsMessage<ConfigError>(HasSubstr("[offload] no room on rank 1: disk 1 is full")));
    group.barrier();  // The group stays usable.
  });
}

TEST(FailTogether, OneRankThrowsItsOwnException) {
  Group alone;
  EXPECT_THROW(
      fail_together(alone, "offload", "no room", [] { throw std::out_of_range("there"); }),
      std::out_of_range);
}

}  // namespace
}  // namespace lockstep
