// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include <c10/core/ScalarType.h>

#include "lockstep/checkpoint/weights/save_model.h"
#include "lockstep/ds_config/ds_config.h"

namespace lockstep {

/// Returns save_model's options for 16-bit weights. Throws ConfigError if neither the file nor
/// `dtype` determines a 16-bit dtype.
checkpoint::SaveModelOptions save_16bit_options(
    const ds_config::DsConfig& config,
    const std::string& file_name,
    std::optional<at::ScalarType> dtype);

}  // namespace lockstep
