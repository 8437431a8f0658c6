// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/storage/stored_checkpoint.h"

namespace lockstep::storage {

/// Finds faults that checksums cannot show, because the manifest with the checksums has them, too.
/// In that order: invalid values in `meta` of a saved state; a required file that the manifest
/// lacks; a missing part of a set of tensors; slices beyond their tensor, or with gaps or overlaps.
/// Reads the headers of all files of tensors, except the `damaged` ones.
std::vector<CheckpointError> find_structural_faults(
    const StoredCheckpoint& checkpoint, const std::set<std::string>& damaged = {});

}  // namespace lockstep::storage
