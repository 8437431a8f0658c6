// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/config/document.h"
#include "lockstep/ds_config/key_table.h"

namespace lockstep::ds_config {

/// The scalars of JSON. Nothing for one of another type: text in quotes is no number and no truth,
/// whatever it says.
std::optional<bool> truth_of(const config::Node& node);
/// 5e8 and 16.0 are whole, too; what int64 cannot hold is none.
std::optional<int64_t> integer_of(const config::Node& node);
/// A finite one.
std::optional<double> number_of(const config::Node& node);
std::optional<std::string> quoted_text_of(const config::Node& node);

/// Whether it is the text "auto".
bool is_auto(const config::Node& node);

/// `text` as one of the words, which may be written in any case; nothing if it is none of them.
std::optional<std::string> word_among(
    const std::string& text, const std::vector<std::string>& words);

/// What is wrong with the value of a key, "got ..., expected ..."; nothing if it will do. Of
/// sections only that they are maps is looked at.
std::optional<std::string> fault_of(const KeySpec& spec, const config::Node& node);

/// What values of it look like: "a whole number from 0 to 3".
std::string expected_of(const KeySpec& spec);

/// A value as a message shows it: `"2" in quotes`, `a list`.
std::string shown(const config::Node& node);
/// The beginning of a text that may be as long as a file.
std::string shown(const std::string& text);

}  // namespace lockstep::ds_config
