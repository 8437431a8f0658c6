// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/storage/stored_checkpoint.h"

namespace lockstep::checkpoint {

/// A part of a checkpoint that is not what was written.
struct Damage {
  std::string file;
  std::string tensor;  ///< Empty if it is the file as a whole, or its header.
  std::string why;     ///< Fit for an error message.
};

/// Everything that is wrong with a checkpoint's files, in the order of the manifest, and then its
/// structural faults, see find_structural_faults; where StoredCheckpoint stops at the first. Reads
/// all of it once. `advance`: told of every few bytes that were read, in all as many as the files
/// should have.
std::vector<Damage> find_damage(
    const StoredCheckpoint& checkpoint,
    const std::function<void(uint64_t bytes)>& advance = [](uint64_t /*bytes*/) {});

}  // namespace lockstep::checkpoint
