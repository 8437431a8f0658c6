// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/group.h"

namespace lockstep {

/// Strings of any length, one from each rank, in rank order. Two all-gathers, the second padded to
/// the longest string.
std::vector<std::string> all_gather_bytes(Group& group, const std::string& mine);

/// `root`'s string, on every rank.
std::string broadcast_bytes(Group& group, const std::string& mine, int root = 0);

}  // namespace lockstep
