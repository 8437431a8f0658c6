// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/safetensors/slices.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/storage/test_checkpoints.h"

namespace lockstep::storage {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Optional;

void refuses_slices(const std::string& text, const std::string& what) {
  SCOPED_TRACE(text);
  expect_refused([&] { parse_slices("f", text); }, "[f", what);
}

TEST(Slices, CountsElements) {
  EXPECT_THAT(element_count({}), Optional(1));
  EXPECT_THAT(element_count({2, 3, 4}), Optional(24));
  EXPECT_THAT(element_count({2, 0, 4}), Optional(0));
  EXPECT_EQ(element_count({-1}), std::nullopt);
  EXPECT_EQ(element_count({int64_t{1} << 32, int64_t{1} << 32}), std::nullopt);
  EXPECT_EQ(element_count({0, int64_t{1} << 32, int64_t{1} << 32}), std::nullopt);
}

TEST(Slices, ParseTheirOwnText) {
  const std::string text = render_slices("f", {{"b.w", {{4, 3}, 6}}, {"a\"ö", {{}, 0}}});
  EXPECT_EQ(text, R"({"a\"ö":{"begin":0,"shape":[]},"b.w":{"begin":6,"shape":[4,3]}})");
  const Slices slices = parse_slices("f", text);
  ASSERT_EQ(slices.size(), 2U);
  EXPECT_THAT(slices.at("b.w").shape, ElementsAre(4, 3));
  EXPECT_EQ(slices.at("b.w").begin, 6);
  EXPECT_THAT(slices.at("a\"ö").shape, IsEmpty());
  EXPECT_THAT(parse_slices("f", render_slices("f", {})), IsEmpty());
}

TEST(Slices, RefuseOtherTexts) {
  refuses_slices("", "lockstep.slices] is not valid JSON");
  refuses_slices("[]", "got array, expected an object");
  refuses_slices(R"({"a":{"begin":0,"shape":[]},"a":{"begin":0,"shape":[]}})", "\"a\" twice");
  refuses_slices(R"({"a":[]})", "\"a\"] has bad lockstep.slices metadata; got \"[]\"");
  refuses_slices(R"({"a":{"shape":[1]}})", "expected {\"begin\"");
  refuses_slices(R"({"a":{"shape":[1],"end":0}})", "expected {\"begin\"");
  refuses_slices(R"({"a":{"shape":[1],"begin":0,"end":1}})", "expected {\"begin\"");
  refuses_slices(R"({"a":{"shape":1,"begin":0}})", "expected {\"begin\"");
  refuses_slices(R"({"a":{"shape":[1],"begin":-1}})", "got \"-1\", expected a count");
  refuses_slices(R"({"a":{"shape":[1],"begin":0.5}})", "expected a count");
  refuses_slices(R"({"a":{"shape":[-1],"begin":0}})", "expected a count");
  refuses_slices(R"({"a":{"shape":["1"],"begin":0}})", "expected a count");
  refuses_slices(R"({"a":{"shape":[9223372036854775808],"begin":0}})", "expected a count");
  refuses_slices(R"({"a":{"shape":[4294967296,4294967296],"begin":0}})", "too many elements");
  refuses_slices(R"({"a":{"shape":[2,3],"begin":7}})", "begins at element 7 of 6");
}

TEST(Slices, AreNotRenderedIfTheyWouldBeRefused) {
  EXPECT_THROW(render_slices("f", {{"a", {{2, 3}, 7}}}), CheckpointError);
  EXPECT_THROW(render_slices("f", {{"a", {{2, 3}, -1}}}), CheckpointError);
  EXPECT_THROW(render_slices("f", {{"a", {{-2}, 0}}}), CheckpointError);
  EXPECT_THROW(render_slices("f", {{"\xff", {{2}, 0}}}), CheckpointError);
}

}  // namespace
}  // namespace lockstep::storage
