// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace lockstep::cli {

/// Reads a text file, and calls `take` with each line that is not empty. Returns the numbers of the
/// lines for which `take` returned false. Throws ConfigError, naming the file, if it cannot be
/// read.
std::vector<int64_t> read_lines(
    const std::filesystem::path& path, const std::function<bool(const std::string& line)>& take);

/// Reads a file of JSON lines, and calls `take` with each object. `take` may throw for a value of
/// another type. Returns the numbers of lines that are no such objects.
std::vector<int64_t> read_json_lines(
    const std::filesystem::path& path,
    const std::function<void(const nlohmann::ordered_json& line)>& take);

/// Adds a note about lines that were left out, if there are any.
void note_damage(
    const std::filesystem::path& path,
    const std::vector<int64_t>& damaged,
    std::vector<std::string>& notes);

/// Returns a number, or NaN or an infinity for its name. Throws nlohmann's exception for other
/// values.
double number_in(const nlohmann::ordered_json& value);

}  // namespace lockstep::cli
