// SPDX-License-Identifier: Apache-2.0
#include "lockstep/mesh/mesh_picture.h"

#include <gmock/gmock.h>

namespace lockstep {
namespace {

TEST(MeshPicture, RowsAreLinesOfTheInnermostDimension) {
  const MeshShape shape = resolve_mesh({.pp = 2, .tp = 2}, 8, false);
  EXPECT_EQ(
      mesh_picture(shape, std::vector<std::string>(8, "")),
      "mesh: pp=2,dp_replicate=2,tp=2 (8 ranks)\n"
      "                        tp 0 1\n"
      "  pp 0  dp_replicate 0     0 1\n"
      "  pp 0  dp_replicate 1     2 3\n"
      "  pp 1  dp_replicate 0     4 5\n"
      "  pp 1  dp_replicate 1     6 7\n");
}

TEST(MeshPicture, HostsAreNamedIfThereAreSeveral) {
  const MeshShape shape = resolve_mesh({.tp = 2}, 4, false);
  EXPECT_EQ(
      mesh_picture(shape, {"a", "a", "b", "b"}),
      "mesh: dp_replicate=2,tp=2 (4 ranks)\n"
      "                  tp 0 1\n"
      "  dp_replicate 0     0 1   on a\n"
      "  dp_replicate 1     2 3   on b\n");
}

TEST(MeshPicture, ALineOfOneDimensionHasNoLabel) {
  EXPECT_EQ(
      mesh_picture(resolve_mesh({.tp = 2}, 2, false), {"a", "a"}),
      "mesh: tp=2 (2 ranks)\n    tp 0 1\n       0 1\n");
}

TEST(MeshPicture, LargeMeshesAreCut) {
  const MeshShape shape = resolve_mesh({.tp = 2}, 400, false);
  const std::string text = mesh_picture(shape, std::vector<std::string>(400, ""));
  EXPECT_THAT(text, testing::HasSubstr("  ... 136 more rows ...\n"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2 + 64 + 1);
}

}  // namespace
}  // namespace lockstep
