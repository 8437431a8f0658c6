// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lockstep/config/document/document.h"
#include "lockstep/engine/setup/initialize_options.h"

namespace lockstep {

/// Reads the ds_config.json that `options`, or else LOCKSTEP_DEEPSPEED_CONFIG_FILE, name. Throws
/// ConfigError if none is named, if several are, and for a file that is not JSON.
config::Document read_config_document(const InitializeOptions& options);

/// Decodes the text of a ds_config.json: DeepSpeed's launchers pass it through a command line in
/// base64, of either alphabet. Text that is not base64 is returned unchanged.
std::string plain_config_text(const std::string& text);

}  // namespace lockstep
