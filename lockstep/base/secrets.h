// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace lockstep {

/// What stands where a secret was.
inline constexpr const char* kHidden = "(hidden)";

/// The value of an environment variable as it may be shown to somebody, who may paste it into a bug
/// report: "(hidden)" if the name speaks of a secret (TOKEN, KEY, PASSWORD, PASSWD, SECRET,
/// CREDENTIAL, AUTH), else the value, with `(hidden)` for what stands before the @ of a URL.
std::string shown_value(const std::string& name, const std::string& value);

}  // namespace lockstep
