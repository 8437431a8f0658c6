// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace lockstep::storage {

/// The nesting limit of a checkpoint's JSON; deeper nesting is refused, in both directions, before
/// it can exhaust the stack.
constexpr int kMaxJsonDepth = 64;

/// Renders JSON losslessly: `parse_json` returns an equal value, numbers bit-exact. Throws
/// CheckpointError, naming `path` and the position, for values that JSON lacks: non-finite numbers
/// (nlohmann would write null), text that is not UTF-8, binary data; and for too deep nesting.
std::string render_json(const std::string& path, const nlohmann::json& value);

/// Parses JSON. Throws CheckpointError, naming `path`, for invalid JSON, a repeated key in an
/// object, a NUL byte, and too deep nesting.
nlohmann::json parse_json(const std::string& path, std::string_view text);

/// Parses only the scalars directly in the root object. Validates the complete text with little
/// memory.
nlohmann::json parse_json_outline(const std::string& path, std::string_view text);

}  // namespace lockstep::storage
