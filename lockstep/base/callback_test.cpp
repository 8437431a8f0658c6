// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/callback.h"

#include <new>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

void fail() {
  throw ConfigError("backward", "the loss is already scaled");
}

TEST(Callback, ErrorsLeaveItAsTheyAreWithoutAReplacement) {
  EXPECT_THAT([] { run_callback(fail); }, ThrowsMessage<ConfigError>(HasSubstr("already scaled")));
}

TEST(Callback, AReplacementChoosesTheTypeOfLockstepsErrorsOnly) {
  set_error_replacement([](const Error& error) { throw std::out_of_range(error.what()); });
  EXPECT_THAT(
      [] { run_callback(fail); }, ThrowsMessage<std::out_of_range>(HasSubstr("already scaled")));
  EXPECT_THROW(run_callback([] { throw std::bad_alloc(); }), std::bad_alloc);
  bool ran = false;
  run_callback([&] { ran = true; });
  EXPECT_TRUE(ran);
  set_error_replacement(nullptr);
}

}  // namespace
}  // namespace lockstep
