// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace lockstep::tracking {

/// Flattens a run's configuration for viewers with one level: {"optimizer": {"lr": 0.1}} ->
/// {"optimizer.lr": 0.1}. Lists and null become their JSON text.
nlohmann::json flat_config(const nlohmann::json& config);

}  // namespace lockstep::tracking
