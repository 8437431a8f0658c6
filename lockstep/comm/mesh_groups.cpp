// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/mesh_groups.h"

#include <vector>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::comm {
namespace {

/// Returns the group of a line. All ranks of `all` call it for lines that together contain each
/// rank once, and are of equal length.
Group group_of(Group all, const std::vector<int>& line) {
  if (line.size() == 1) {
    return {};
  }
  return static_cast<int>(line.size()) == all.size() ? all : all.split(line.front());
}

}  // namespace

MeshGroups connect_mesh(const Group& all, const MeshShape& shape) {
  if (shape.ranks() != all.size()) {
    throw ConfigError(
        "mesh",
        fmt::format(
            "the mesh {} has {} ranks, but the group has {}; pass a resolved shape",
            mesh_text(shape),
            shape.ranks(),
            all.size()));
  }
  const auto along = [&](const std::vector<MeshDim>& dims) {
    return group_of(all, mesh_line(shape, all.rank(), dims));
  };
  MeshGroups groups{
      .shape = shape,
      .all = all,
      .data = along({MeshDim::kDpReplicate, MeshDim::kDpShard}),
      .tensor = along({MeshDim::kTp}),
      .sequence = along({MeshDim::kCp, MeshDim::kSp}),
      .pipeline = along({MeshDim::kPp}),
      .experts = group_of(all, expert_line(shape, all.rank()))};
  // Lines of the same ranks share a group.
  groups.replicas =
      shape.cp * shape.sp == 1
          ? groups.data
          : along({MeshDim::kDpReplicate, MeshDim::kDpShard, MeshDim::kCp, MeshDim::kSp});
  groups.model = shape.pp == 1   ? groups.tensor
                 : shape.tp == 1 ? groups.pipeline
                                 : along({MeshDim::kPp, MeshDim::kTp});
  return groups;
}

}  // namespace lockstep::comm
