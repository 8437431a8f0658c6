// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/mesh_groups.h"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::comm {
namespace {

/// Returns the group of a line. All ranks of `all` call it for lines that together contain each
/// rank once, and are of equal length.
Group group_of(Group all, const std::vector<int>& line, const char* dims) {
  if (line.size() == 1) {
    return {};
  }
  const bool has_all = static_cast<int>(line.size()) == all.size();
  return (has_all ? all : all.split(line.front())).with_mesh_dims(dims);
}

/// Returns the ranks of `replicas`, the line of `rank`, that have the same experts.
std::vector<int> with_same_experts(const std::vector<int>& replicas, int rank, int ep) {
  const auto own = std::find(replicas.begin(), replicas.end(), rank) - replicas.begin();
  std::vector<int> line;
  for (auto i = static_cast<size_t>(own % ep); i < replicas.size(); i += static_cast<size_t>(ep)) {
    line.push_back(replicas[i]);
  }
  return line;
}

/// Returns a group of the line that shares no operations with `all`.
Group own_group_of(Group all, const std::vector<int>& line, const char* dims) {
  return line.size() == 1 ? Group() : all.split(line.front()).with_mesh_dims(dims);
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
  // Data parallelism alone needs no names.
  const bool is_named = shape.ep > 1 || shape.dp_replicate * shape.dp_shard < all.size();
  const auto along = [&](const std::vector<MeshDim>& dims, const char* name) {
    return group_of(all, mesh_line(shape, all.rank(), dims), is_named ? name : "");
  };
  const char* sequence = shape.cp > 1 ? "cp" : "sp";
  const std::string of_copies =
      std::string(shape.dp_replicate * shape.dp_shard > 1 ? "dp_" : "") + sequence;
  MeshGroups groups{
      .shape = shape,
      .all = all,
      .data = along({MeshDim::kDpReplicate, MeshDim::kDpShard}, "dp"),
      .tensor = along({MeshDim::kTp}, "tp"),
      .sequence =
          own_group_of(all, mesh_line(shape, all.rank(), {MeshDim::kCp, MeshDim::kSp}), sequence),
      .pipeline = along({MeshDim::kPp}, "pp")};
  // Lines of the same ranks share a group.
  const std::vector<MeshDim> of_replicas = {
      MeshDim::kDpReplicate, MeshDim::kDpShard, MeshDim::kCp, MeshDim::kSp};
  groups.replicas = shape.cp * shape.sp == 1 ? groups.data : along(of_replicas, of_copies.c_str());
  groups.expert_replicas = groups.replicas;
  if (shape.ep > 1) {
    groups.experts = own_group_of(all, expert_line(shape, all.rank()), "ep");
    const std::vector<int> replicas = mesh_line(shape, all.rank(), of_replicas);
    groups.expert_replicas =
        group_of(all, with_same_experts(replicas, all.rank(), shape.ep), "expert_dp");
  }
  groups.model = shape.pp == 1   ? groups.tensor
                 : shape.tp == 1 ? groups.pipeline
                                 : along({MeshDim::kPp, MeshDim::kTp}, "pp_tp");
  return groups;
}

}  // namespace lockstep::comm
