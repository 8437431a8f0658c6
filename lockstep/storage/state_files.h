// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace lockstep::checkpoint::state_files {

/// The names of the files of a saved state, as Accelerate has them where it has them.

/// "model", then "model_1", ...
inline std::string numbered(const std::string& stem, size_t index) {
  return index == 0 ? stem : fmt::format("{}_{}", stem, index);
}

/// Of one process: "random_states_0.safetensors".
inline std::string of_rank(const std::string& stem, int rank, const std::string& ending) {
  return fmt::format("{}_{}{}", stem, rank, ending);
}

inline std::string model(size_t index) {
  return numbered("model", index) + ".safetensors";
}

inline std::string gradients(size_t model, int rank) {
  return of_rank(numbered("gradients", model), rank, ".safetensors");
}

/// The stem of what all processes share, and of what each has for itself.
inline std::string optimizer(size_t index) {
  return numbered("optimizer", index);
}
inline std::string optimizer_of_rank(size_t index, int rank) {
  return fmt::format("{}_of_rank_{}", optimizer(index), rank);
}

/// What one process has of a state that ZeRO divides, where each host keeps its own processes'
/// alone: "optimizer_part_of_rank_3.safetensors"; and beside these, what is not divided.
inline std::string part_of_rank(const std::string& stem, int rank) {
  return of_rank(stem + "_part_of_rank", rank, ".safetensors");
}
/// Whether it is the name of such a file, of any stem.
inline bool is_part_of_rank(std::string_view file) {
  return file.find("_part_of_rank_") != std::string_view::npos && file.ends_with(".safetensors");
}
inline std::string undivided(const std::string& stem) {
  return stem + "_undivided.safetensors";
}

/// "custom_checkpoint_0" of all, "custom_checkpoint_0_of_rank_1".
inline std::string object(size_t index) {
  return fmt::format("custom_checkpoint_{}", index);
}
inline std::string object_of_rank(size_t index, int rank) {
  return fmt::format("{}_of_rank_{}", object(index), rank);
}

}  // namespace lockstep::checkpoint::state_files
