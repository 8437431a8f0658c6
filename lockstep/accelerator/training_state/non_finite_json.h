// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace lockstep {

/// JSON has no infinity and no NaN. This is `value` with text in their place, as optim's plateau
/// has it, marked so that it is told from text of the user's: {"lockstep.non_finite": "-inf"}.
nlohmann::json without_non_finite(const nlohmann::json& value);

/// The way back, to equal numbers. What was never without them comes back as it is.
nlohmann::json with_non_finite(const nlohmann::json& value);

}  // namespace lockstep
