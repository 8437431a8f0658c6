// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/group.h"
#include "lockstep/mesh/mesh_shape.h"

namespace lockstep::comm {

/// The groups of one rank in a mesh, each a line of ranks that differ in some dimensions only. A
/// group without other ranks is a group of one; one of all ranks is `all` itself.
struct MeshGroups {
  MeshShape shape = {};  ///< A resolved one.
  Group all = {};        ///< Every rank of the job.
  Group data = {};       ///< Ranks that compute different samples: dp_replicate and dp_shard.
  Group replicas = {};   ///< Ranks with the same part of the model: `data`, cp and sp.
  Group tensor = {};     ///< Ranks that divide each layer: tp.
  Group sequence = {};   ///< Ranks that divide the sequence: cp or sp.
  Group pipeline = {};   ///< Ranks that divide the layers: pp.
  Group model = {};      ///< Ranks with different parts of one model: pp and tp.
  /// Ranks that divide the experts: ep. A group of its own, because its operations run while
  /// gradients are averaged.
  Group experts = {};
  Group expert_replicas = {};  ///< Those of `replicas` with the same experts; all without ep.
};

/// Connects the groups. Throws ConfigError unless `shape` has as many ranks as `all`. Collective;
/// costs a Group::split for each group that is neither of one rank nor of all.
MeshGroups connect_mesh(const Group& all, const MeshShape& shape);

}  // namespace lockstep::comm
