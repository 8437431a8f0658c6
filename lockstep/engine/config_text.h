// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace lockstep {

/// A ds_config.json's text: `text` itself, or what it is in base64, of either alphabet, as
/// DeepSpeed's launchers pass it through a command line. What is no base64 comes back as it is.
std::string plain_config_text(const std::string& text);

}  // namespace lockstep
