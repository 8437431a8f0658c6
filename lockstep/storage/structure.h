// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/storage/stored_checkpoint.h"

namespace lockstep::checkpoint {

/// Faults that no checksum shows, because the manifest that has the checksums has them, too: `meta`
/// of a saved state with values that make no sense; a file that such a state needs and the manifest
/// does not list; a part of a set of tensors that it does not list; slices beyond their tensor, or
/// that leave a hole in it or overlap. In that order. Reads the headers of all files of tensors,
/// except of the `damaged` ones, whose content is known to be wrong.
std::vector<CheckpointError> find_structural_faults(
    const StoredCheckpoint& checkpoint, const std::set<std::string>& damaged = {});

}  // namespace lockstep::checkpoint
