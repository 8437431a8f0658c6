// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/ds_config/ds_config.h"
#include "lockstep/ds_config/key_reader.h"

/// What several keys say together, once each of them is known to be right. Errors and notes go to
/// the reader.
namespace lockstep::ds_config {

/// The old way to write a stage; what goes with which stage and device.
void apply_zero_rules(KeyReader& reader, std::optional<int64_t> world_size, DsConfig& config);

/// What a schedule asks of the file's optimizer.
void apply_schedule_rules(KeyReader& reader, const DsConfig& config);

/// One precision of three sections that may say it, and what scale goes with it.
void apply_precision_rules(KeyReader& reader, DsConfig& config);

/// What dtypes go with each other, and with what is computed in. 16-bit masters set `param_dtype`.
void apply_dtype_rules(KeyReader& reader, DsConfig& config);

/// Which operations the comms logger keeps.
void apply_watching_rules(KeyReader& reader, DsConfig& config);

/// What contiguous memory for activations needs.
void apply_activation_rules(KeyReader& reader, const DsConfig& config);

/// The batch sizes. `file`: where an error stands that is none of a key's.
void apply_batch_rule(KeyReader& reader, config::Place file, int64_t world_size, DsConfig& config);

}  // namespace lockstep::ds_config
