// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/text/shell.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(ShellQuoted, QuotesOnlyIfNecessary) {
  EXPECT_EQ(
      shell_quoted({"./train", "--name=a b", "it's", "", "$HOME"}),
      "./train '--name=a b' 'it'\\''s' '' '$HOME'");
}

}  // namespace
}  // namespace lockstep
