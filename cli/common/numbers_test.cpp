// SPDX-License-Identifier: Apache-2.0
#include "cli/common/numbers.h"

#include <string>

#include <gtest/gtest.h>

#include "cli/common/choices.h"

namespace lockstep::cli {
namespace {

/// Returns the error of an option's check for `text`; empty if `text` is valid.
std::string fault(const CLI::Validator& check, std::string text) {
  return check(text);
}

TEST(OptionChecks, SuggestNoNumberThatIsRefusedToo) {
  EXPECT_EQ(
      fault(seconds_between(0.001, 86400), "-1"), "got '-1', expected seconds from 0.001 to 86400");
  EXPECT_EQ(
      fault(seconds_between(0, 86400), "1e3"),
      "got '1e3', expected seconds from 0 to 86400; write 1000");
  EXPECT_EQ(
      fault(integer_between(0, 100), "0x1000"),
      "got '0x1000', expected a whole number from 0 to 100");
}

TEST(OptionChecks, NameTheLikeliestWord) {
  const CLI::Validator check = one_of({"no", "fp16", "bf16"});
  EXPECT_EQ(fault(check, "bf16"), "");
  EXPECT_EQ(
      fault(check, "bf61"), "got 'bf61', expected one of no, fp16, bf16; did you mean 'bf16'?");
  EXPECT_EQ(fault(check, "float"), "got 'float', expected one of no, fp16, bf16");
  EXPECT_EQ(check.get_description(), "{no,fp16,bf16}");
}

}  // namespace
}  // namespace lockstep::cli
