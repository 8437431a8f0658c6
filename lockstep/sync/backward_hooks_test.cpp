// SPDX-License-Identifier: Apache-2.0
#include "lockstep/sync/backward_hooks.h"

#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "lockstep/comm/call_scope.h"

namespace lockstep {
namespace {

at::Tensor leaf(double value = 1) {
  return at::full({2}, value).requires_grad_();
}

TEST(BackwardHooks, FiresOnceABackwardAfterAccumulationEvenIfUsedTwice) {
  at::Tensor a = leaf();
  at::Tensor b = leaf();
  std::vector<size_t> fired;
  const BackwardHooks hooks({a, b}, [&](size_t i) {
    EXPECT_TRUE((i == 0 ? a : b).grad().defined());
    fired.push_back(i);
  });
  (a * a + b).sum().backward();
  EXPECT_EQ(fired.size(), 2U);
  a.sum().backward();
  EXPECT_EQ(fired.back(), 0U);
  EXPECT_EQ(fired.size(), 3U);
  EXPECT_TRUE(at::equal(a.grad(), at::full({2}, 3.0)));
}

TEST(BackwardHooks, WorksBesideAnotherOneAndStopsWhenDestroyed) {
  at::Tensor a = leaf();
  int first = 0;
  int second = 0;
  const BackwardHooks outer({a}, [&](size_t) { ++first; });
  {
    const BackwardHooks inner({a}, [&](size_t) { ++second; });
    a.sum().backward();
  }
  a.sum().backward();
  EXPECT_EQ(first, 2);
  EXPECT_EQ(second, 1);
}

TEST(BackwardHooks, NameBackwardAsTheCallOfTheirOperations) {
  at::Tensor a = leaf();
  std::string call;
  const BackwardHooks hooks({a}, [&](size_t) { call = comm::current_call(); });
  a.sum().backward();
  EXPECT_EQ(call, "backward");
  EXPECT_EQ(comm::current_call(), nullptr);
}

TEST(BackwardHooks, AnExceptionPropagatesOutOfBackward) {
  at::Tensor a = leaf();
  const BackwardHooks hooks({a}, [](size_t) { throw std::runtime_error("from the hook"); });
  EXPECT_THROW(a.sum().backward(), std::runtime_error);
}

TEST(BackwardHooks, TheEndCallbackRunsAfterAllGradientsAndMayThrow) {
  at::Tensor a = leaf();
  at::Tensor b = leaf();
  int arrived = 0;
  int ended = 0;
  bool fail = false;
  const BackwardHooks hooks({a, b}, [&](size_t) {
    if (arrived++ == 0) {
      BackwardHooks::at_end_of_backward([&] {
        EXPECT_EQ(arrived, 2);
        ++ended;
        if (fail) {
          throw std::runtime_error("from the end");
        }
      });
    }
  });
  (a * b).sum().backward();
  EXPECT_EQ(ended, 1);
  arrived = 0;
  fail = true;
  EXPECT_THROW((a * b).sum().backward(), std::runtime_error);
}

}  // namespace
}  // namespace lockstep
