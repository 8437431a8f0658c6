// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "lockstep/zero_options/zero_plugin.h"

/// Rules about the options of ZeRO and between them. Pure functions.
namespace lockstep {

/// Checks the options of a job's ZeRO, with a stage from 1 on. `processes`: those of the job.
/// Throws ConfigError for options that are out of range, need another stage, contradict each other,
/// or do not fit the number of processes.
void check_zero_options(const ZeroPlugin& zero, int processes);

/// Throws ConfigError, in the name of `where`, for kLocalStateDict.
void refuse_local_state_dict(StateDictType type, const char* where);

/// Returns whether an option that is off by default is on.
template <typename Value>
bool is_turned_on(const Value& value) {
  return value != Value();
}

/// The only number among them is the size of a group of processes: a group of one is none.
inline bool is_turned_on(int64_t processes) {
  return processes > 1;
}

}  // namespace lockstep
