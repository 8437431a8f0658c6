// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace lockstep {

/// Decodes the text of a ds_config.json: DeepSpeed's launchers pass it through a command line in
/// base64, of either alphabet. Text that is not base64 is returned unchanged.
std::string plain_config_text(const std::string& text);

}  // namespace lockstep
