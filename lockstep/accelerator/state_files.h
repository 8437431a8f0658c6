// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include <fmt/format.h>

namespace lockstep::state_files {

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

/// "custom_checkpoint_0" of all, "custom_checkpoint_0_of_rank_1".
inline std::string object(size_t index) {
  return fmt::format("custom_checkpoint_{}", index);
}
inline std::string object_of_rank(size_t index, int rank) {
  return fmt::format("{}_of_rank_{}", object(index), rank);
}

}  // namespace lockstep::state_files
