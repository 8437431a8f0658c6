// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace lockstep::cli {

/// Escapes the characters that HTML text and attributes give a meaning: & < > " '.
std::string html_escaped(const std::string& text);

/// Returns JSON that may stand in a <script> element: it has no < > & outside of \u escapes, and is
/// ASCII. Invalid UTF-8 becomes U+FFFD.
std::string script_json(const nlohmann::ordered_json& json);

/// Returns a complete HTML page: `title`, and charts of `data`, {"runs": [page_data, ...]}. The
/// page loads nothing, which its Content-Security-Policy enforces.
std::string make_page(const std::string& title, const nlohmann::ordered_json& data);

}  // namespace lockstep::cli
