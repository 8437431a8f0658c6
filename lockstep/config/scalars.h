// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep::config {

// What the text of a setting means; of truths, see truth_value of base/words.h. The same rules hold
// in a file, in the environment and on the command line, so that a value means one thing wherever
// it stands.

/// A whole decimal number: digits, with '-' before them. 010, 1_000, 0x10, 1e3, +1 and 1.0 are
/// none: other readers of YAML take each for something else.
std::optional<int64_t> integer_value(const std::string& text);

/// A decimal number that is not negative: digits, with '.' and digits after them. 1e3, .5 and inf
/// are none.
std::optional<double> decimal_number(const std::string& text);

/// Advice on text that is no integer_value but means one from `least` to `most`: "; write 16". Else
/// nothing.
std::string number_hint(const std::string& text, double least, double most);

/// `text` as it may stand behind `key: ` in YAML, for any reader to take as text: in double quotes
/// if it could be taken for anything else.
std::string yaml_text(const std::string& text);

}  // namespace lockstep::config
