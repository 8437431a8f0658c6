// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/group.h"

namespace lockstep {

/// Gathers strings of any length from all ranks, in rank order. Costs two all-gathers, the second
/// padded to the longest string.
std::vector<std::string> all_gather_bytes(Group& group, const std::string& mine);

/// Returns `root`'s string on every rank.
std::string broadcast_bytes(Group& group, const std::string& mine, int root = 0);

}  // namespace lockstep
