// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/mesh_groups.h"

#include <gmock/gmock.h>

#include <ATen/ops/full.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/thread/ranks.h"

namespace lockstep::comm {
namespace {

/// Returns the ranks of `all` that are in `group`, as bits.
int64_t members(const Group& all, Group group) {
  return group.all_reduce(at::full({1}, int64_t{1} << all.rank(), at::kLong))
      .wait()
      .item<int64_t>();
}

TEST(MeshGroups, EachRankIsInTheGroupsOfItsLines) {
  ranks(8, [](const Group& all) {
    const MeshGroups mesh = connect_mesh(all, resolve_mesh({.cp = 2, .tp = 2}, 8, false));
    const int rank = all.rank();
    EXPECT_EQ(members(all, mesh.tensor), int64_t{3} << (rank / 2 * 2));
    EXPECT_EQ(members(all, mesh.sequence), int64_t{5} << (rank / 4 * 4 + rank % 2));
    EXPECT_EQ(members(all, mesh.data), int64_t{17} << (rank % 4));
    EXPECT_EQ(members(all, mesh.replicas), int64_t{85} << (rank % 2));
    EXPECT_EQ(mesh.model.size(), 2);
    EXPECT_EQ(mesh.pipeline.size(), 1);
    EXPECT_EQ(mesh.experts.size(), 1);
    EXPECT_EQ(members(all, mesh.expert_replicas), members(all, mesh.replicas));
  });
}

TEST(MeshGroups, RanksThatDivideTheExpertsAverageThemWithThoseOfOtherLines) {
  ranks(8, [](const Group& all) {
    const MeshGroups mesh = connect_mesh(all, resolve_mesh({.tp = 2, .ep = 2}, 8, false));
    const int rank = all.rank();
    EXPECT_EQ(members(all, mesh.experts), int64_t{5} << (rank / 4 * 4 + rank % 2));
    EXPECT_EQ(members(all, mesh.expert_replicas), int64_t{17} << (rank % 4));
    EXPECT_EQ(members(all, mesh.replicas), int64_t{85} << (rank % 2));
  });
  ranks(2, [](const Group& all) {
    const MeshGroups mesh = connect_mesh(all, resolve_mesh({.ep = 2}, 2, false));
    EXPECT_EQ(members(all, mesh.experts), 3);
    EXPECT_EQ(mesh.expert_replicas.size(), 1);
  });
}

TEST(MeshGroups, DataParallelismAloneNeedsNoFurtherGroup) {
  ranks(2, [](const Group& all) {
    const MeshGroups mesh = connect_mesh(all, resolve_mesh({}, 2, false));
    EXPECT_EQ(mesh.data.size(), 2);
    EXPECT_EQ(mesh.replicas.size(), 2);
    EXPECT_EQ(mesh.model.size(), 1);
  });
}

TEST(MeshGroups, AShapeOfOtherRanksIsRefused) {
  ranks(2, [](const Group& all) {
    EXPECT_THROW(connect_mesh(all, resolve_mesh({.tp = 4}, 4, false)), ConfigError);
  });
}

}  // namespace
}  // namespace lockstep::comm
