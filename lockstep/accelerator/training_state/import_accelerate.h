// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/comm/tensor/named_tensor.h"

namespace lockstep::internal {

/// The prepared objects that a folder is imported for.
struct ImportTarget {
  struct Optimizer {
    /// The names of each group's parameters, in the groups' order: Python's files count them.
    std::vector<std::vector<std::string>> parameters;
    nlohmann::json settings;  ///< The program's own, see optimizer_settings().
  };
  size_t models = 1;
  std::vector<Optimizer> optimizers;
  std::vector<nlohmann::json> schedulers;  ///< The program's own, see Scheduler::state().
};

/// The content of an Accelerate folder, in the form of Lockstep's own checkpoints.
struct ImportedState {
  struct Optimizer {
    NamedTensors tensors;  ///< By parameter name; input of check_optimizer.
    nlohmann::json settings;
    int64_t steps = 0;          ///< Updates done; 0 if the state counts none, as SGD's.
    std::string path;           ///< The file of the tensors, for messages.
    std::string settings_path;  ///< The file of the settings.
  };
  std::vector<std::filesystem::path> models;  ///< Weights, for check_checkpoint_in_model.
  std::vector<Optimizer> optimizers;
  std::vector<nlohmann::json> schedulers;  ///< Input of Scheduler::check_state.
  std::vector<std::string> not_imported;   ///< Files that were not read, for a warning; sorted.
};

/// Returns whether `folder` looks like Accelerate's save_state and is not a Lockstep checkpoint.
bool is_accelerate_folder(const std::filesystem::path& folder);

/// Reads a folder that Accelerate's `save_state` wrote. Model weights are read directly. Optimizers
/// and schedulers, which Accelerate pickles, are read from the files that a one-line Python command
/// converts them to: `optimizer(_i).safetensors`, `optimizer(_i).json` and `scheduler(_i).json`. No
/// pickle is read, because reading one runs code in it: if those files are missing, or weights are
/// pickled, a CheckpointError gives the command. Random states, loader positions, a loss scaler and
/// custom objects are pickles, too, and are not imported: `not_imported` names their files.
///
/// Optimizer state is assigned to parameters by name if Python's optimizer stored names that match
/// the program's; else by order, which must be the program's order. Python options that change no
/// number (foreach, fused, ...) are dropped. A schedule continues after the same number of steps;
/// the folder does not say whether it is the same schedule.
///
/// Tensors are views of the mapped files. Throws CheckpointError for a folder with another number
/// of models, optimizers or schedulers than `target`, for a state of other parameters or groups,
/// and for damaged files. check_optimizer and check_state check shapes and options. Written against
/// Accelerate 1.15 and torch 2.13.
ImportedState import_accelerate(const std::filesystem::path& folder, const ImportTarget& target);

}  // namespace lockstep::internal
