// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/config/document/document.h"
#include "lockstep/ds_config/keys/key_table.h"

namespace lockstep::ds_config {

/// Returns a scalar of JSON; nothing for another type. Quoted text is not a number or boolean.
std::optional<bool> truth_of(const config::Node& node);
/// Returns an int64. 5e8 and 16.0 are integers, too.
std::optional<int64_t> integer_of(const config::Node& node);
/// Returns a finite number.
std::optional<double> number_of(const config::Node& node);
std::optional<std::string> quoted_text_of(const config::Node& node);

/// Returns whether the value is the text "auto".
bool is_auto(const config::Node& node);

/// Returns the member of the list that equals `text`, in any case; nothing if there is none.
std::optional<std::string> word_among(
    const std::string& text, const std::vector<std::string>& words);

/// Describes the fault of a key's value, "got ..., expected ..."; nothing if it is valid. Sections
/// are only checked to be maps.
std::optional<std::string> fault_of(const KeySpec& spec, const config::Node& node);

/// Describes the values of a key: "a whole number from 0 to 3".
std::string expected_of(const KeySpec& spec);

/// Formats a value for a message: `"2" in quotes`, `a list`.
std::string shown(const config::Node& node);
/// Returns the beginning of a text of any length.
std::string shown(const std::string& text);

}  // namespace lockstep::ds_config
