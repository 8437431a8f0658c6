// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/accelerator/options/options.h"
#include "lockstep/config/document/document.h"

namespace lockstep {

/// Reads a ds_config.json for a program that has Accelerate's loop, with a DeepSpeedPlugin, instead
/// of DeepSpeed's engine. It sets `zero` (or, for stage 0, `deepspeed_plugin`), grad_scaler and
/// gradient_accumulation_steps.
///
/// Sizes of batches need not be given, since loaders have them. Throws ConfigError for what
/// `initialize` refuses, and for a key that only the engine honours, unless its value is what an
/// Accelerator does without it.
AcceleratorOptions plugin_options(const config::Document& document);

}  // namespace lockstep
