// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace lockstep {

/// Replaces a secret in printed values.
inline constexpr const char* kHidden = "(hidden)";

/// Returns the value of an environment variable in a form that is safe in a bug report.
///
/// That is "(hidden)" if the name suggests a secret (TOKEN, KEY, PASSWORD, PASSWD, SECRET,
/// CREDENTIAL, AUTH); else the value, with "(hidden)" for the credentials before the @ of a URL.
std::string shown_value(const std::string& name, const std::string& value);

}  // namespace lockstep
