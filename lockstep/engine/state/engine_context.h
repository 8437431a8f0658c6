// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/comm/log/comms_log.h"
#include "lockstep/ds_config/ds_config.h"
#include "lockstep/engine/profiler/engine_reporter.h"
#include "lockstep/engine/profiler/module_tree.h"
#include "lockstep/engine/state/loss_scale.h"
#include "lockstep/engine/state/micro_step_counter.h"
#include "lockstep/zero/activation/activation_checkpointing.h"

namespace lockstep {

/// The objects that all parts of one engine use. EngineSetup creates them.
struct EngineContext {
  EngineContext(ds_config::DsConfig resolved, int ranks)
      : config(std::move(resolved)), counter(config, ranks) {}

  int64_t stage() const { return config.zero.plugin.stage; }
  bool has_optimizer() const { return optimizer != Optimizer(); }
  bool has_scheduler() const { return scheduler != Scheduler(); }
  /// Returns the factor of gradients; 1 without fp16.
  double loss_scale() const;
  /// Returns the rate of each parameter group; empty without an optimizer.
  std::vector<double> learning_rates() const;
  /// Returns the momentum, or the first of the betas, of each parameter group that has one.
  std::vector<double> momenta() const;
  /// Frees the model's training state and the Accelerator. The engine's other parts must not be
  /// used any more.
  void release();

  ds_config::DsConfig config;
  MicroStepCounter counter;
  std::shared_ptr<ActivationCheckpointing> activation_checkpointing;  ///< Null: not in the file.
  std::shared_ptr<DynamicLossScale> dynamic_loss_scale;  ///< With fp16 and no fixed scale.
  std::shared_ptr<CommsLog> comms_log;                   ///< With comms_logger.
  /// Opens its monitors before the model is sharded, so that a folder that cannot be written fails
  /// early.
  std::unique_ptr<EngineReporter> reporter;
  bool saves_on_each_host = false;  ///< Each host writes its own checkpoints.
  std::unique_ptr<Accelerator> accelerator;
  Optimizer optimizer;
  Scheduler scheduler;
  bool scheduler_needs_metric = false;
  std::function<std::vector<at::Tensor>()> parameters;  ///< The model's.
  std::function<ModuleTree()> modules;                  ///< The model's.
};

}  // namespace lockstep
