// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/config/document/document.h"
#include "lockstep/ds_config/keys/key_table.h"

namespace lockstep::ds_config {

/// The scalars of JSON. Nothing for another type: quoted text is no number and no boolean.
std::optional<bool> truth_of(const config::Node& node);
/// 5e8 and 16.0 are integers, too; a number beyond int64 is none.
std::optional<int64_t> integer_of(const config::Node& node);
/// A finite number.
std::optional<double> number_of(const config::Node& node);
std::optional<std::string> quoted_text_of(const config::Node& node);

/// Whether it is the text "auto".
bool is_auto(const config::Node& node);

/// Returns the member of the list that equals `text`, in any case; nothing if there is none.
std::optional<std::string> word_among(
    const std::string& text, const std::vector<std::string>& words);

/// Describes the fault of a key's value, "got ..., expected ..."; nothing if it is valid. Sections
/// are only checked to be maps.
std::optional<std::string> fault_of(const KeySpec& spec, const config::Node& node);

/// Describes its values: "a whole number from 0 to 3".
std::string expected_of(const KeySpec& spec);

/// Formats a value for a message: `"2" in quotes`, `a list`.
std::string shown(const config::Node& node);
/// Returns the beginning of a text of any length.
std::string shown(const std::string& text);

}  // namespace lockstep::ds_config
