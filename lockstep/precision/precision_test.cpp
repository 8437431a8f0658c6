// SPDX-License-Identifier: Apache-2.0
#include "lockstep/precision/precision.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/test_errors.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

std::string refusal_of(const std::string& name) {
  return error_of([&] { parse_precision(name); });
}

TEST(Precision, IsParsedFromItsOwnName) {
  for (const Precision precision : {Precision::kNo, Precision::kFP16, Precision::kBF16}) {
    EXPECT_EQ(parse_precision(name_of(precision)), precision);
  }
}

TEST(Precision, RefusesOtherNamesWithASuggestion) {
  EXPECT_THAT(refusal_of("bf61"), HasSubstr("did you mean 'bf16'?"));
  EXPECT_THAT(refusal_of("bfloat16"), HasSubstr("did you mean 'bf16'?"));
  EXPECT_THAT(refusal_of("fp32"), HasSubstr("did you mean 'no'?"));
  EXPECT_THAT(refusal_of(""), HasSubstr("expected no, fp16 or bf16"));
  EXPECT_THAT(refusal_of("fp8"), HasSubstr("try bf16"));
}

TEST(Precision, ReportsTheDtypeOfAutocast) {
  EXPECT_EQ(autocast_dtype(Precision::kFP16), c10::kHalf);
  EXPECT_EQ(autocast_dtype(Precision::kBF16), c10::kBFloat16);
  EXPECT_THROW(autocast_dtype(Precision::kNo), ConfigError);
}

}  // namespace
}  // namespace lockstep
