// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/storage/stored_checkpoint.h"

namespace lockstep::storage {

/// A damaged part of a checkpoint.
struct Damage {
  std::string file;
  std::string tensor;  ///< Empty for the complete file, or its header.
  std::string why;     ///< The text of the error.
};

/// Finds all faults of a checkpoint's files, in the order of the manifest, and then its structural
/// faults, see find_structural_faults. StoredCheckpoint stops at the first. Reads everything once.
/// `advance` is called regularly with the bytes read; their sum is the expected size of all files.
std::vector<Damage> find_damage(
    const StoredCheckpoint& checkpoint,
    const std::function<void(uint64_t bytes)>& advance = [](uint64_t /*bytes*/) {});

}  // namespace lockstep::storage
