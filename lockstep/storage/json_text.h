// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace lockstep::checkpoint {

/// Nothing in a checkpoint nests deeper; more is refused, both ways, before it can exhaust the
/// stack.
constexpr int kMaxJsonDepth = 64;

/// JSON that comes back as it went: `parse_json` gives an equal value, numbers to the last bit.
/// CheckpointError, naming `path` and the place, for what JSON cannot hold: numbers that are not
/// finite (nlohmann would write null), text that is not UTF-8, binary data; and for too deep
/// nesting.
std::string render_json(const std::string& path, const nlohmann::json& value);

/// CheckpointError, naming `path`, for invalid JSON, a key given twice in an object, a NUL byte,
/// and too deep nesting.
nlohmann::json parse_json(const std::string& path, std::string_view text);

/// The same without what nests: of an object only the numbers, strings and such directly in it.
/// Proves all of the text, and takes little memory, whatever it holds.
nlohmann::json parse_json_outline(const std::string& path, std::string_view text);

}  // namespace lockstep::checkpoint
