// SPDX-License-Identifier: Apache-2.0
#include "examples/common/text.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace examples {
namespace {

using testing::ElementsAre;

/// Returns the picture as rows of characters: # where it is not white.
std::vector<std::string> rows_of(const Picture& picture) {
  std::vector<std::string> rows;
  for (int y = 0; y < picture.height; ++y) {
    std::string& row = rows.emplace_back();
    for (int x = 0; x < picture.width; ++x) {
      row += picture.rgb[static_cast<size_t>(y * picture.width + x) * 3] == 255 ? '.' : '#';
    }
  }
  return rows;
}

std::vector<std::string> drawn(const std::string& text, int scale = 1) {
  Picture picture(text_width(text, scale), text_height(scale));
  draw_text(picture, 0, 0, text, scale, {.red = 1, .green = 2, .blue = 3});
  return rows_of(picture);
}

TEST(DrawText, DrawsTheShapesSideBySide) {
  EXPECT_THAT(
      drawn("Tag"),
      ElementsAre(
          "#####............",
          "..#..............",
          "..#....###...####",
          "..#.......#.#...#",
          "..#....####.#...#",
          "..#...#...#.#...#",
          "..#....####..####",
          "................#",
          ".............###."));
}

TEST(DrawText, EachSquareHasTheScale) {
  const std::vector<std::string> large = drawn("-", 2);
  EXPECT_EQ(large.size(), 18U);
  EXPECT_EQ(large[5], "..........");
  EXPECT_EQ(large[6], "..######..");
  EXPECT_EQ(large[7], "..######..");
}

TEST(DrawText, ACharacterWithoutAShapeIsAQuestionMark) {
  EXPECT_EQ(drawn("\x01"), drawn("?"));
  const std::string known =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 -%,.:()/='_";
  for (const char c : known) {
    EXPECT_NE(drawn(std::string(1, c)), drawn("?")) << c;
  }
}

TEST(DrawText, IsClippedToThePicture) {
  Picture picture(4, 3);
  draw_text(picture, -1, -2, "HHH", 1, {});
  EXPECT_THAT(rows_of(picture), ElementsAre("...#", "####", "...#"));
}

TEST(TextWidth, HasNoGapAfterTheLastCharacter) {
  EXPECT_EQ(text_width("", 2), 0);
  EXPECT_EQ(text_width("a", 2), 10);
  EXPECT_EQ(text_width("ab", 2), 22);
}

}  // namespace
}  // namespace examples
