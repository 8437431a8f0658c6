// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep::config {

// The interpretation of a setting's text; for booleans see truth_value of base/text/words.h. The
// same rules hold in a file, in the environment and on the command line.

/// Parses a decimal integer: digits, optionally after '-'. Rejects 010, 1_000, 0x10, 1e3, +1 and
/// 1.0, which YAML readers interpret differently.
std::optional<int64_t> integer_value(const std::string& text);

/// Parses a non-negative decimal number: digits, optionally '.' and digits. Rejects 1e3, .5 and
/// inf.
std::optional<double> decimal_number(const std::string& text);

/// Returns advice, like "; write 16", for text that is not an integer_value but means one from
/// `least` to `most`. Else empty.
std::string number_hint(const std::string& text, double least, double most);

/// Returns `text` in a form that every YAML reader takes as text after `key: `: in double quotes
/// if necessary.
std::string yaml_text(const std::string& text);

}  // namespace lockstep::config
