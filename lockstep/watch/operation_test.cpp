// SPDX-License-Identifier: Apache-2.0
#include "lockstep/watch/operation.h"

#include <gtest/gtest.h>

#include "lockstep/watch/test_views.h"

namespace lockstep::watch {
namespace {

TEST(Operation, IsDescribedAsErrorsDo) {
  Operation operation = all_reduce(1, 0, Stage::kDone);
  EXPECT_EQ(operation.describe(), "all_reduce(sum) of float32[10]");
  operation.reduce = {};
  operation.name = short_text<20>("broadcast");
  operation.peer = 2;
  EXPECT_EQ(operation.describe(), "broadcast with root 2 of float32[10]");
  operation.name = short_text<20>("send");
  EXPECT_EQ(operation.describe(), "send to rank 2 of float32[10]");
  operation.name = short_text<20>("recv");
  EXPECT_EQ(operation.describe(), "recv from rank 2 of float32[10]");
  operation.name = short_text<20>("barrier");
  operation.peer = operation.dims = -1;
  EXPECT_EQ(operation.describe(), "barrier");
}

TEST(Operation, OmitsSizesBeyondItsCapacity) {
  Operation operation = all_reduce(1, 0, Stage::kDone);
  operation.dims = 8;
  operation.sizes = {1, 2, 3, 4, 5, 6};
  EXPECT_EQ(operation.describe(), "all_reduce(sum) of float32[1, 2, 3, 4, 5, 6, ...]");
}

TEST(Operation, CutsTextThatIsTooLongAndEndsIt) {
  const auto text = short_text<4>("abcdef");
  EXPECT_EQ(text_of(text), "abc");
  const std::array<char, 3> unended = {'a', 'b', 'c'};
  EXPECT_EQ(text_of(unended), "abc");
}

}  // namespace
}  // namespace lockstep::watch
