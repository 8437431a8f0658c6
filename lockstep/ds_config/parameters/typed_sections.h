// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/ds_config/ds_config.h"
#include "lockstep/ds_config/keys/key_reader.h"

namespace lockstep::ds_config {

/// Reads `optimizer` and then `scheduler`, which have a type and its params, after the reader has
/// checked the file. Errors, also for contradictory numbers of a schedule, go to the reader.
void read_typed_sections(KeyReader& reader, DsConfig& config);

}  // namespace lockstep::ds_config
