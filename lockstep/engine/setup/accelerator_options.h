// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "lockstep/accelerator/options/options.h"
#include "lockstep/ds_config/ds_config.h"
#include "lockstep/engine/state/loss_scale.h"

namespace lockstep {

constexpr const char* kSafeModulesKey = "torch_autocast.lower_precision_safe_modules";

/// Facts about a model and its optimizer on which the translation of a ds_config.json depends.
struct TrainedModel {
  bool has_optimizer = false;
  bool has_16_bit_parameters = false;  ///< With fp16 or bf16: some trained ones are 16-bit.

  /// Returns whether float32 masters are sharded in stage 0, too. Full ones would take the memory
  /// of two more models on each rank.
  bool shards_masters_in_stage_0(const ds_config::DsConfig& config) const {
    return has_16_bit_parameters && has_optimizer && config.zero.plugin.stage == 0;
  }
};

/// Throws ConfigError, in the name of initialize, for options of the program that ds_config.json
/// has, too.
void check_no_option_of_ds_config(const AcceleratorOptions& given);

/// Returns the loss scale of a ds_config.json with fp16; null without fp16 and for a fixed scale.
std::shared_ptr<DynamicLossScale> make_dynamic_loss_scale(const ds_config::DsConfig& config);

/// Sets ZeRO's options to those of a ds_config.json.
void set_zero_options(
    const ds_config::DsConfig& config, const TrainedModel& model, AcceleratorOptions& options);

/// Translates a ds_config.json to the options of an Accelerator; `given` has the remaining options.
/// `loss_scale`: the result of make_dynamic_loss_scale, which the options update. Throws
/// ConfigError, in the name of initialize, for a communication_data_type that the model does not
/// allow.
AcceleratorOptions accelerator_options(
    const ds_config::DsConfig& config,
    AcceleratorOptions given,
    const TrainedModel& model,
    const std::shared_ptr<DynamicLossScale>& loss_scale);

}  // namespace lockstep
