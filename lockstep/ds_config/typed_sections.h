// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/ds_config/ds_config.h"
#include "lockstep/ds_config/key_reader.h"

namespace lockstep::ds_config {

/// Reads `optimizer` and then `scheduler`, which a type and its params make up, after the reader
/// has checked the file; errors go to the reader. A schedule whose numbers do not go together is
/// one, too.
void read_typed_sections(KeyReader& reader, DsConfig& config);

}  // namespace lockstep::ds_config
