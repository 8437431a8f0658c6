// SPDX-License-Identifier: Apache-2.0
#include "cli/common/plot.h"

#include <gtest/gtest.h>

namespace lockstep::cli {
namespace {

TEST(Plot, HasItsLabelsAtTheEndsOfBothAxes) {
  EXPECT_EQ(
      render_plot({0, 1, 2, 3}, 20, 4),
      "  3 |   *\n"
      "    |  *\n"
      "    | *\n"
      "  0 |*\n"
      "    +----\n"
      "     0  3\n");
}

TEST(Plot, AColumnOfManyValuesShowsThemAll) {
  const std::string plot = render_plot({0, 0, 8, 0, 0, 0, 0, 0}, 4, 3);
  EXPECT_EQ(
      plot,
      "  8 | *\n"
      "    | *\n"
      "  0 |****\n"
      "    +----\n"
      "     0  7\n");
}

TEST(Plot, AConstantIsALine) {
  EXPECT_EQ(
      render_plot({0.5}, 10, 2),
      "  0.5 |\n"
      "  0.5 |*\n"
      "      +-\n"
      "       0\n");
}

}  // namespace
}  // namespace lockstep::cli
