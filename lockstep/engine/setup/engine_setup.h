// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/engine/profiler/module_tree.h"
#include "lockstep/engine/setup/accelerator_options.h"
#include "lockstep/engine/setup/initialize_options.h"

namespace lockstep {

struct EngineContext;

/// Creates the objects of an engine from InitializeOptions, for initialize(). Its functions are
/// called in the order below. Collective; not thread-safe.
class EngineSetup {
 public:
  /// Reads the file, casts the model's tensors as data_types says, connects the ranks, and creates
  /// the Accelerator. Throws ConfigError, before the ranks are connected, for an invalid file.
  EngineSetup(
      InitializeOptions options,
      const NamedTensors& parameters,
      const NamedTensors& buffers,
      const internal::NamedClasses& modules);

  Accelerator& accelerator() const;
  /// Says that the model is a pipeline, of which each step is an update of all micro-batches.
  void set_pipeline() const;
  /// Returns the program's optimizer, or the file's for `parameters`; null if there is neither.
  std::shared_ptr<torch::optim::Optimizer> optimizer_for(NamedTensors parameters) const;
  /// Prepares the scheduler, and returns all objects. The functions return the model's parameters
  /// and modules. Throws ConfigError for a scheduler without an optimizer.
  std::shared_ptr<EngineContext> finish(
      Optimizer optimizer,
      std::function<std::vector<at::Tensor>()> parameters,
      std::function<ModuleTree()> modules);
  /// Returns the prepared scheduler; an empty handle if there is none.
  Scheduler scheduler() const;

 private:
  void make_optimizer_of_program(const NamedTensors& parameters);
  void freeze_without_optimizer(const NamedTensors& parameters) const;
  void create_accelerator();
  void prepare_scheduler();

  InitializeOptions given_;
  std::shared_ptr<EngineContext> context_;
  TrainedModel model_;
};

}  // namespace lockstep
