// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/comm/named_tensor.h"

namespace lockstep {

/// What the program has prepared that a folder is imported for.
struct ImportTarget {
  struct Optimizer {
    /// The names of each group's parameters, in the groups' order: Python's files count them.
    std::vector<std::vector<std::string>> parameters;
    nlohmann::json settings;  ///< Its own, see optimizer_settings().
  };
  size_t models = 1;
  std::vector<Optimizer> optimizers;
  std::vector<nlohmann::json> schedulers;  ///< Their own, see Scheduler::state().
};

/// What an Accelerate folder says about it, in the form of Lockstep's own checkpoints.
struct ImportedState {
  struct Optimizer {
    NamedTensors tensors;  ///< By parameter name: what check_optimizer takes.
    nlohmann::json settings;
    int64_t steps = 0;          ///< Updates done; 0 where its state counts none, as SGD's.
    std::string path;           ///< Of the tensors, for messages.
    std::string settings_path;  ///< Of the settings.
  };
  std::vector<std::filesystem::path> models;  ///< Weights, for check_checkpoint_in_model.
  std::vector<Optimizer> optimizers;
  std::vector<nlohmann::json> schedulers;  ///< What Scheduler::check_state takes.
  std::vector<std::string> left_out;       ///< Files that were not read, for a warning; sorted.
};

/// Whether `folder` looks like Accelerate's save_state and is no checkpoint of ours.
bool is_accelerate_folder(const std::filesystem::path& folder);

/// Reads what Accelerate's `save_state` wrote: the weights of its models as they are; optimizers
/// and schedulers, which Accelerate pickles, from the files that a one-line Python command makes of
/// them, `optimizer(_i).safetensors`, `optimizer(_i).json` and `scheduler(_i).json`. No pickle is
/// read, for reading one runs code in it: where those files are missing, or weights are pickled, a
/// CheckpointError gives the command. Random states, the positions of loaders, a loss scaler and
/// custom objects are pickles too, and not imported: the names of their files come back in
/// `left_out`.
///
/// An optimizer's state goes to parameters by name where Python's optimizer knew names and they are
/// the program's, else by their order in it, which must be the order of the program's. Options of
/// Python's that change no number (foreach, fused, ...) are dropped. A schedule goes on after as
/// many steps; that it is the same schedule nothing in the folder says.
///
/// Tensors are views of the mapped files. CheckpointError for a folder that holds another number of
/// models, optimizers or schedulers than `target`, for a state of other parameters or groups, and
/// for damaged files; that shapes and options fit is for check_optimizer and check_state to find.
/// Written against Accelerate 1.15 and torch 2.13.
ImportedState import_accelerate(const std::filesystem::path& folder, const ImportTarget& target);

}  // namespace lockstep
