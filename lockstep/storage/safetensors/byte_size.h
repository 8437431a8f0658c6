// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace lockstep::storage {

/// Parses "300MB" as 300000000. A size is a number, optionally with a fraction, and KB, MB, GB or
/// TB, decimal as in huggingface_hub; or bytes without a unit. Throws ConfigError, beginning with
/// `where`, for anything else, for zero, and for impossible sizes.
uint64_t parse_bytes(const std::string& where, const std::string& text);

/// Formats bytes for people: "999 B", "1.23 GB", three digits and decimal units.
std::string format_bytes(uint64_t bytes);

}  // namespace lockstep::storage
