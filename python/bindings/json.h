// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "python/bindings/bindings.h"

namespace lockstep::python {

/// Converts None, bool, int, float, str, and lists, tuples and dicts of them; keys must be str.
/// Infinities and NaN are preserved. Throws ConfigError, which names `where`, for other types.
nlohmann::json to_json(py::handle value, const char* where);

/// Does the reverse; arrays become lists.
py::object from_json(const nlohmann::json& value);

}  // namespace lockstep::python
