// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "lockstep/mesh/mesh_shape.h"

namespace lockstep {

/// Draws the ranks of a mesh. Ranks of a line of the innermost dimension share a row:
///
///     mesh: dp_replicate=2,tp=2 (4 ranks)
///                       tp 0  1
///       dp_replicate 0     0  1
///       dp_replicate 1     2  3
///
/// `hosts`: the host's name of each rank; more than one name adds a column. Beyond 64 rows it
/// leaves out those in the middle. `shape`: a resolved one, with a size above 1.
std::string mesh_picture(const MeshShape& shape, const std::vector<std::string>& hosts);

}  // namespace lockstep
