// SPDX-License-Identifier: Apache-2.0
#include "lockstep/config/document/scalars.h"

#include <limits>

#include <gtest/gtest.h>

#include "lockstep/config/document/document.h"

namespace lockstep::config {
namespace {

TEST(IntegerValue, AcceptsOnlyUnambiguousNumbers) {
  EXPECT_EQ(integer_value("0"), 0);
  EXPECT_EQ(integer_value("-12"), -12);
  EXPECT_EQ(integer_value("9223372036854775807"), std::numeric_limits<int64_t>::max());
  for (const char* text :
       {"",
        "-",
        "+1",
        "010",
        "-01",
        "1_000",
        "0x10",
        "1e3",
        "1.0",
        " 1",
        "1 ",
        "one",
        "9223372036854775808"}) {
    EXPECT_EQ(integer_value(text), std::nullopt) << text;
  }
}

TEST(DecimalNumber, TakesDigitsAndAPoint) {
  EXPECT_EQ(decimal_number("0"), 0.0);
  EXPECT_EQ(decimal_number("30"), 30.0);
  EXPECT_EQ(decimal_number("0.25"), 0.25);
  for (const char* text :
       {"",
        ".",
        ".5",
        "1.",
        "-1",
        "+1",
        "01",
        "1e3",
        "0x10",
        "1_0",
        "inf",
        "nan",
        "1.2.3",
        "1,5"}) {
    EXPECT_EQ(decimal_number(text), std::nullopt) << text;
  }
}

TEST(NumberHint, SuggestsTheIntendedNumber) {
  EXPECT_EQ(number_hint("1e3", 0, 1e6), "; write 1000");
  EXPECT_EQ(number_hint("0x10", 0, 1e6), "; write 16");
  EXPECT_EQ(number_hint("1_000", 0, 1e6), "; write 1000");
  EXPECT_EQ(number_hint("010", 0, 1e6), "; write 10");
  EXPECT_EQ(number_hint("+4", 0, 1e6), "; write 4");
  EXPECT_EQ(number_hint("2.0", 0, 1e6), "; write 2");
  for (const char* text : {"", "two", "2.5", "1e300", "-", "e", "4 GPUs", "deadbeef"}) {
    EXPECT_EQ(number_hint(text, 0, 1e6), "") << text;
  }
}

TEST(NumberHint, IsEmptyForForbiddenNumbers) {
  EXPECT_EQ(number_hint("-1", 0, 1e6), "");
  EXPECT_EQ(number_hint("0x0", 1, 1e6), "");
  EXPECT_EQ(number_hint("1e7", 0, 1e6), "");
}

TEST(YamlText, IsReadBackUnchanged) {
  for (const std::string text :
       {"plain", "/a/b-c.json", "no",   "NULL", "1",           "0x10",   "-a",    "",
        " a",    "a b",         "a: b", "#a",   "it's \"so\"", "a\tb\n", "größe", "~",
        "{a}",   "12:30",       "a#b",  "*a",   "!b",          "@c",     "=",     ".inf"}) {
    const std::string line = "key: " + yaml_text(text) + "\n";
    const Document document = parse_document("a.yaml", line, Format::kYaml);
    const Node* const node = document.root.find("key");
    ASSERT_NE(node, nullptr) << line;
    EXPECT_EQ(node->text, text) << line;
  }
  EXPECT_EQ(yaml_text("bf16"), "bf16");
  EXPECT_EQ(yaml_text("no"), "\"no\"");
}

}  // namespace
}  // namespace lockstep::config
