// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/ds_config/ds_config.h"
#include "lockstep/ds_config/keys/key_reader.h"

/// Rules between several keys, applied after each key was checked. Errors and notes go to the
/// reader.
namespace lockstep::ds_config {

/// Reports an error at the value of a key, if the file has it: "<path> <what>".
void refuse_key(KeyReader& reader, const std::string& path, const std::string& what);

/// Checks old names of a stage, and which options need which stage and device.
void apply_zero_rules(KeyReader& reader, std::optional<int64_t> world_size, DsConfig& config);

/// Checks that the file's optimizer fits the schedule.
void apply_schedule_rules(KeyReader& reader, const DsConfig& config);

/// Finds the one precision of three sections, and its loss scale.
void apply_precision_rules(KeyReader& reader, DsConfig& config);

/// Checks that the dtypes fit each other and the compute dtype. 16-bit masters set `param_dtype`.
void apply_dtype_rules(KeyReader& reader, DsConfig& config);

/// Selects the operations of the comms logger.
void apply_watching_rules(KeyReader& reader, DsConfig& config);

/// Checks the options of contiguous memory for activations.
void apply_activation_rules(KeyReader& reader, const DsConfig& config);

/// Reads the layers that ranks divide, and checks sizes that must be equal.
void apply_parallel_rules(KeyReader& reader, std::optional<int64_t> world_size, DsConfig& config);

/// Resolves the batch sizes. `file`: the position of an error that belongs to no key.
void apply_batch_rule(KeyReader& reader, config::Place file, int64_t world_size, DsConfig& config);

}  // namespace lockstep::ds_config
