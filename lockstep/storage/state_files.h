// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace lockstep::storage::state_files {

/// The file names of a saved state, Accelerate's names where it has them.

/// Returns "model" for index 0, then "model_1", ...
inline std::string numbered(const std::string& stem, size_t index) {
  return index == 0 ? stem : fmt::format("{}_{}", stem, index);
}

/// Returns the name of one process's file, such as "random_states_0.safetensors".
inline std::string of_rank(const std::string& stem, int rank, const std::string& ending) {
  return fmt::format("{}_{}{}", stem, rank, ending);
}

inline std::string model(size_t index) {
  return numbered("model", index) + ".safetensors";
}

inline std::string gradients(size_t model, int rank) {
  return of_rank(numbered("gradients", model), rank, ".safetensors");
}

/// Return the stem of a file that all processes share, and of a file for each process.
inline std::string optimizer(size_t index) {
  return numbered("optimizer", index);
}
inline std::string optimizer_of_rank(size_t index, int rank) {
  return fmt::format("{}_of_rank_{}", optimizer(index), rank);
}

/// Returns the name of one process's part of a sharded state, if each host saves the parts of its
/// own processes: "optimizer_part_of_rank_3.safetensors".
inline std::string part_of_rank(const std::string& stem, int rank) {
  return of_rank(stem + "_part_of_rank", rank, ".safetensors");
}
/// Returns whether `file` is the name of such a part, of any stem.
inline bool is_part_of_rank(std::string_view file) {
  return file.find("_part_of_rank_") != std::string_view::npos && file.ends_with(".safetensors");
}
/// Returns the name of the unsharded state next to such parts.
inline std::string unsharded(const std::string& stem) {
  return stem + "_undivided.safetensors";
}

/// Return "custom_checkpoint_0", which all processes share, and "custom_checkpoint_0_of_rank_1".
inline std::string object(size_t index) {
  return fmt::format("custom_checkpoint_{}", index);
}
inline std::string object_of_rank(size_t index, int rank) {
  return fmt::format("{}_of_rank_{}", object(index), rank);
}

}  // namespace lockstep::storage::state_files
