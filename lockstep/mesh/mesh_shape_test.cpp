// SPDX-License-Identifier: Apache-2.0
#include "lockstep/mesh/mesh_shape.h"

#include <set>

#include <gmock/gmock.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

template <typename Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(MeshShape, RanksOfTheLastDimensionAreConsecutive) {
  const MeshShape shape = resolve_mesh({.pp = 2, .tp = 2}, 8, /*shards=*/false);
  EXPECT_EQ(shape.dp_replicate, 2);
  EXPECT_EQ(shape.dp_shard, 1);
  EXPECT_THAT(mesh_line(shape, 5, {MeshDim::kTp}), ElementsAre(4, 5));
  EXPECT_THAT(mesh_line(shape, 5, {MeshDim::kDpReplicate}), ElementsAre(5, 7));
  EXPECT_THAT(mesh_line(shape, 5, {MeshDim::kPp}), ElementsAre(1, 5));
  EXPECT_THAT(mesh_line(shape, 0, {MeshDim::kPp, MeshDim::kTp}), ElementsAre(0, 1, 4, 5));
}

TEST(MeshShape, TheLinesOfADimensionContainEachRankOnce) {
  const MeshShape shape =
      resolve_mesh({.pp = 2, .dp_replicate = 2, .dp_shard = 3, .cp = 2, .tp = 2}, 48, true);
  for (const MeshDim dim : kMeshDims) {
    std::multiset<int> seen;
    for (int rank = 0; rank < 48; ++rank) {
      const std::vector<int> line = mesh_line(shape, rank, {dim});
      ASSERT_EQ(line.size(), shape.size(dim));
      EXPECT_EQ(line[mesh_coordinate(shape, rank, dim)], rank);
      if (line.front() == rank) {
        seen.insert(line.begin(), line.end());
      }
    }
    EXPECT_EQ(seen.size(), 48);
    EXPECT_EQ(std::set<int>(seen.begin(), seen.end()).size(), 48);
  }
}

TEST(MeshShape, ShardedJobsHaveTheRestInDpShard) {
  EXPECT_EQ(
      resolve_mesh({.tp = 2}, 8, true), (MeshShape{.dp_replicate = 1, .dp_shard = 4, .tp = 2}));
  EXPECT_EQ(
      resolve_mesh({.dp_shard = 2, .tp = 2}, 8, true),
      (MeshShape{.dp_replicate = 2, .dp_shard = 2, .tp = 2}));
  EXPECT_EQ(
      resolve_mesh({.dp_replicate = 4, .tp = 2}, 8, false),
      (MeshShape{.dp_replicate = 4, .dp_shard = 1, .tp = 2}));
}

TEST(MeshShape, ExpertsAreDividedAmongConsecutiveRanksOfEqualTp) {
  const MeshShape shape = resolve_mesh({.tp = 2, .ep = 2}, 8, false);
  EXPECT_THAT(expert_line(shape, 0), ElementsAre(0, 2));
  EXPECT_THAT(expert_line(shape, 7), ElementsAre(5, 7));
}

TEST(MeshShape, ImpossibleShapesAreNamed) {
  EXPECT_THAT(
      error_of([] { resolve_mesh({.tp = 3}, 8, false); }),
      HasSubstr("the mesh tp=3 needs a multiple of 3 ranks; the job has 8"));
  EXPECT_THAT(
      error_of([] { resolve_mesh({.dp_replicate = 2, .dp_shard = 2, .tp = 1}, 8, true); }),
      HasSubstr("the mesh dp_replicate=2,dp_shard=2 has 4 ranks; the job has 8"));
  EXPECT_THAT(
      error_of([] { resolve_mesh({.cp = 2, .sp = 2}, 4, false); }),
      HasSubstr("cp = 2 and sp = 2, which both divide the sequence"));
  EXPECT_THAT(
      error_of([] { resolve_mesh({.tp = 0}, 4, false); }),
      HasSubstr("tp = 0; expected at least 1"));
  EXPECT_THAT(
      error_of([] { resolve_mesh({.tp = 2, .ep = 4}, 4, false); }),
      HasSubstr("ep = 4, but 2 ranks hold the same part"));
  EXPECT_THAT(
      error_of([] {
        expect_lines_on_hosts({.tp = 4}, {4, 6});
      }),
      HasSubstr("host 1 has 6 ranks, so the 4 ranks of a tp line would be on several hosts"));
  expect_lines_on_hosts({.tp = 2}, {4, 6});
}

TEST(MeshShape, TextIsReadAndWritten) {
  const MeshShape shape = parse_mesh("pp=2,dp_shard=2,tp=4", "here");
  EXPECT_EQ(shape, (MeshShape{.pp = 2, .dp_shard = 2, .tp = 4}));
  EXPECT_EQ(mesh_text(shape), "pp=2,dp_shard=2,tp=4");
  EXPECT_EQ(mesh_text({}), "");
  EXPECT_THAT(
      error_of([] { parse_mesh("tp=2,tpp=2", "here"); }),
      HasSubstr("[here] the mesh has the part 'tpp=2'"));
  EXPECT_THAT(error_of([] { parse_mesh("tp=two", "here"); }), HasSubstr("tp is 'two'"));
  EXPECT_THAT(error_of([] { parse_mesh("tp=2,tp=2", "here"); }), HasSubstr("has tp twice"));
  EXPECT_THAT(error_of([] { parse_mesh("tp", "here"); }), HasSubstr("expected NAME=SIZE"));
}

TEST(MeshShape, TheEnvironmentHasAcceleratesVariables) {
  EXPECT_EQ(
      mesh_from_environment(Environment::of(
          {{"ACCELERATE_USE_PARALLELISM_CONFIG", "true"},
           {"PARALLELISM_CONFIG_TP_SIZE", "2"},
           {"PARALLELISM_CONFIG_DP_SHARD_SIZE", "4"}})),
      (MeshShape{.dp_shard = 4, .tp = 2}));
  EXPECT_EQ(
      mesh_from_environment(Environment::of({{"PARALLELISM_CONFIG_TP_SIZE", "2"}})), MeshShape());
  EXPECT_EQ(
      mesh_from_environment(Environment::of({{"LOCKSTEP_MESH", "cp=2"}})), (MeshShape{.cp = 2}));
}

}  // namespace
}  // namespace lockstep
