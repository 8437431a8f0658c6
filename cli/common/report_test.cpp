// SPDX-License-Identifier: Apache-2.0
#include "cli/common/report.h"

#include <cstdio>
#include <cstdlib>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::cli {
namespace {

TEST(RenderTable, AlignsColumnsByTheirWidest) {
  EXPECT_EQ(
      render_table(
          {{"NAME", "SIZE", "STATE"}, {"größe", "1", ""}, {"b", "12345", "torn"}},
          {false, true, false}),
      "  NAME    SIZE  STATE\n"
      "  größe      1\n"
      "  b      12345  torn\n");
  EXPECT_EQ(render_table({}, {false}), "");
}

TEST(RenderTable, CutsNamesOnlyWhereTheTerminalIsNarrow) {
  const std::vector<std::vector<std::string>> rows = {
      {"NAME", "SIZE", "STATE"},
      {"transformer.größe.0123456789", "123456", "a reason that may go on in the next line"}};
  EXPECT_EQ(
      render_table(rows, {false, true, false}, 30),
      "  NAME                    SIZE  STATE\n"
      "  transforme…123456789  123456  a reason that may go on in the next line\n");
  EXPECT_EQ(
      render_table(rows, {false, true, false}, 200), render_table(rows, {false, true, false}));
  EXPECT_THAT(
      render_table(rows, {false, true, false}, 3), testing::HasSubstr("\n  transf…56789  "));
}

TEST(Shortened, LosesItsMiddle) {
  EXPECT_EQ(shortened("abcdefgh", 8), "abcdefgh");
  EXPECT_EQ(shortened("abcdefgh", 5), "ab…gh");
  EXPECT_EQ(shortened("äöüäöü", 4), "äö…ü");
  EXPECT_EQ(shortened("abc", 1), "…");
}

TEST(Wrapped, BreaksBetweenWords) {
  EXPECT_EQ(wrapped("one größe three", 9), "one größe\nthree");
  EXPECT_EQ(wrapped("one two", 3, "  "), "one\n  two");
  EXPECT_EQ(wrapped("a longword b", 4), "a\nlongword\nb");
  EXPECT_EQ(wrapped("", 4), "");
}

TEST(PrintReport, FailsIfStdoutCannotBeWritten) {
  for (const bool json : {false, true}) {
    EXPECT_EXIT(
        {
          std::FILE* const full = std::freopen("/dev/full", "w", stdout);
          int code = full == nullptr ? 8 : 9;
          try {
            print_report("test", json, [] { return Report{.text = "x\n", .json = {}}; });
          } catch (const Error& error) {
            const std::string what = error.what();
            code = what.find("[stdout] cannot be written; No space left") == 0 ? 7 : 6;
          }
          std::_Exit(code);
        },
        testing::ExitedWithCode(7),
        "");
  }
}

TEST(Printable, LetsNothingThroughThatMovesTheCursor) {
  EXPECT_EQ(printable("größe ✓ 𝄞 \"\\"), "größe ✓ 𝄞 \"\\");
  EXPECT_EQ(printable("a\n\x1b[31m\x7f"), "a\\x0a\\x1b[31m\\x7f");
  EXPECT_EQ(
      printable("\xc2\x9b"
                "31m \xc2\xa0"),
      "\\x9b31m \xc2\xa0");
  EXPECT_EQ(printable("a\xff"), "a\xef\xbf\xbd");
  EXPECT_EQ(printable(""), "");
}

TEST(WithCommas, GroupsByThree) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(1000), "1,000");
  EXPECT_EQ(with_commas(1234567), "1,234,567");
  EXPECT_EQ(with_commas(-123456), "-123,456");
}

TEST(WithoutFolder, KeepsPathsWithinIt) {
  EXPECT_EQ(without_folder("[a/b] is none", "a/b"), "is none");
  EXPECT_EQ(without_folder("[a/b/c.json: x] is none", "a/b"), "[c.json: x] is none");
  EXPECT_EQ(without_folder("[a/bc] is none", "a/b"), "[a/bc] is none");
}

}  // namespace
}  // namespace lockstep::cli
