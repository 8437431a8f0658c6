// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace lockstep::internal {

/// Replaces infinities and NaN, which JSON lacks, by a marked text: {"lockstep.non_finite":
/// "-inf"}. The mark distinguishes it from text of the user.
nlohmann::json without_non_finite(const nlohmann::json& value);

/// Restores the numbers. A value without marks is returned unchanged.
nlohmann::json with_non_finite(const nlohmann::json& value);

}  // namespace lockstep::internal
