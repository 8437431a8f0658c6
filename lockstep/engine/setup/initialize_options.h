// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/accelerator/loop/scheduler.h"
#include "lockstep/accelerator/options/options.h"
#include "lockstep/engine/setup/config_arguments.h"
#include "lockstep/engine/setup/init_distributed.h"
#include "lockstep/optim/rules/mup.h"

namespace lockstep {

/// Options of `initialize`.
struct InitializeOptions {
  /// The ds_config.json; or its text, as `config_json`, possibly in base64; or the command line's,
  /// as `args`. One of them, or else the file that LOCKSTEP_DEEPSPEED_CONFIG_FILE names (`lockstep
  /// launch --deepspeed-config-file`).
  std::filesystem::path config = {};
  std::string config_json = {};
  /// The result of add_config_arguments.
  ConfigArguments args = {};
  /// Replaces the file's optimizer: of lockstep::optim, or with stage 0 of torch::optim.
  std::shared_ptr<torch::optim::Optimizer> optimizer = nullptr;
  /// Creates the optimizer for `model_parameters`, or all parameters that require gradients.
  std::function<std::shared_ptr<torch::optim::Optimizer>(const std::vector<at::Tensor>& parameters)>
      make_optimizer = nullptr;
  /// Replaces the file's scheduler. One that needs a metric gets it from step({.metric = ...}), at
  /// each update.
  std::optional<AnySchedule> lr_scheduler = std::nullopt;
  /// Creates the scheduler for the optimizer.
  std::function<AnySchedule(torch::optim::Optimizer& optimizer)> make_lr_scheduler = nullptr;
  /// The parameters of the file's optimizer; empty: all that require gradients. Gradients of other
  /// parameters are ignored, and dropped with each update; under ZeRO, freeze these.
  std::vector<at::Tensor> model_parameters = {};
  /// The result of optim::set_base_shapes, for the file's MuAdam, MuAdamW or MuSGD.
  optim::InfShapes mup_shapes = {};
  /// Options that the file lacks: project_dir, cpu, timeouts. Options that the file has, too
  /// (mixed_precision, zero, gradient_accumulation_steps, grad_scaler, loss_scale_rule, non_finite,
  /// lower_precision_safe_modules) are an error.
  AcceleratorOptions accelerator = {};
  /// Replaces the connection of init_distributed or initialize: ranks as threads, or part of a job.
  using Connected = lockstep::Connected;
  std::optional<lockstep::Connected> connected = std::nullopt;
};

}  // namespace lockstep
