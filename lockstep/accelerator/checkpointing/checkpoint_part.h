// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/accelerator/checkpointing/saving_groups.h"
#include "lockstep/accelerator/options/project_configuration.h"
#include "lockstep/checkpoint/contents.h"
#include "lockstep/checkpoint/even_shares.h"
#include "lockstep/checkpoint/reader.h"
#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/storage/saved_meta.h"

namespace lockstep::internal {

/// A training state that is collected for one save.
struct StateToSave {
  const SaveStateOptions& options;
  const SavingGroups& groups;
  int rank = 0;
  int writers_per_rank = 1;               ///< Threads that write the files of one rank.
  checkpoint::EvenShares shares;          ///< Distributes tensors that are equal on all ranks.
  std::set<size_t> excluded_models = {};  ///< Saved by a hook of the program.

  checkpoint::Contents contents = {};  ///< This process's files.
  /// Full tensors of a sharded model, which the main process reads one by one while all processes
  /// help to unshard them.
  checkpoint::Contents full_tensors = {};
  nlohmann::json meta = {};
};

/// A checkpoint that is checked for one load, and the functions that apply it afterwards.
struct StateToLoad {
  checkpoint::Reader reader;
  storage::SavedMeta saved;
  checkpoint::VerificationShare share;  ///< The checksums that this process verifies.
  LoadStateOptions options;
  int rank = 0;
  int processes = 1;
  std::string mesh = {};  ///< This job's, as in SavedMeta.
  int replica = 0;  ///< The index of this process among those with the same part of the model.
  int writers_per_rank = 1;               ///< Threads that read the files of one rank.
  std::set<size_t> excluded_models = {};  ///< Loaded by a hook of the program.
  std::vector<std::function<void()>> apply = {};

  int saved_by() const { return saved.processes; }
  bool is_resharded() const { return saved_by() != processes || saved.mesh != mesh; }
  bool loads_optimizers() const { return options.optimizers && !options.models_only; }
  bool loads_loop() const { return options.training_loop && !options.models_only; }
  /// The rank whose files this process reads.
  int source() const { return is_resharded() ? 0 : rank; }

  std::string path(const std::string& file) const;
  /// Names the file or files of a set of tensors, for messages.
  std::string set_path(const std::string& stem) const;
  /// Returns the tensors of a set; each process verifies its share of them.
  NamedTensors tensor_set(const std::string& stem) const;
  /// Returns the tensors of each process that saved, from one file for each.
  std::vector<NamedTensors> of_all_ranks(const std::function<std::string(int rank)>& file_of) const;
  /// Throws CheckpointError for a file of each process, of a divided model, if this job has other
  /// processes or another mesh.
  void expect_same_mesh(const std::string& file) const;
  /// Throws CheckpointError unless the program prepared as many objects as were saved.
  void must_match(
      const char* what,
      size_t saved_count,
      size_t prepared_count,
      const std::string& remedy = "") const;
};

/// One part of a checkpoint: saves and loads one kind of state.
///
///     class OptimizerStepsPart final : public CheckpointPart {
///       void collect(StateToSave& state) const override { state.meta["steps"] = steps_; }
///       void check(StateToLoad& state) const override {
///         const auto steps = state.saved.optimizer_steps;
///         state.apply.emplace_back([this, steps] { set_steps(steps); });
///       }
///     };
///
/// A save collects all parts in order, then writes. A load checks all parts that it includes in
/// that order, and applies what they have added in the same order if none of them has thrown on any
/// process.
class CheckpointPart {
 public:
  virtual ~CheckpointPart() = default;

  /// Adds the state of this process. Tensors are referred to, not copied, until the save has
  /// returned. An exception fails the save on all processes when it is written; the other parts are
  /// still collected. A part that communicates must do so on all processes, and throws only after.
  virtual void collect(StateToSave& state) const = 0;
  /// Returns whether a load with the program's options includes this part; else it is not checked.
  virtual bool is_loaded(const StateToLoad& state) const { return state.loads_loop(); }
  /// Adds functions to `apply`, and changes nothing. Throws CheckpointError for a state that does
  /// not fit the program. Local.
  virtual void check(StateToLoad& state) const = 0;
};

/// The parts of a checkpoint, in order.
using CheckpointParts = std::vector<std::shared_ptr<CheckpointPart>>;

}  // namespace lockstep::internal
