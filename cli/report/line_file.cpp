// SPDX-License-Identifier: Apache-2.0
#include "cli/report/line_file.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text/words.h"

namespace lockstep::cli {

using OrderedJson = nlohmann::ordered_json;

std::vector<int64_t> read_lines(
    const std::filesystem::path& path, const std::function<bool(const std::string& line)>& take) {
  std::ifstream file(path, std::ios::binary);
  std::error_code error;
  if (!file || std::filesystem::is_directory(path, error)) {
    throw ConfigError(path.string(), "cannot be read; expected a file of lines");
  }
  std::vector<int64_t> damaged;
  int64_t number = 0;
  for (std::string text; std::getline(file, text);) {
    ++number;
    if (!text.empty() && !take(text)) {
      damaged.push_back(number);
    }
  }
  if (file.bad()) {
    throw ConfigError(path.string(), fmt::format("cannot be read after line {}", number));
  }
  return damaged;
}

std::vector<int64_t> read_json_lines(
    const std::filesystem::path& path, const std::function<void(const OrderedJson& line)>& take) {
  return read_lines(path, [&](const std::string& text) {
    try {
      const OrderedJson line = OrderedJson::parse(text);
      if (line.is_object()) {
        take(line);
      }
      return line.is_object();
    } catch (const OrderedJson::exception&) {
      return false;
    }
  });
}

void note_damage(
    const std::filesystem::path& path,
    const std::vector<int64_t>& damaged,
    std::vector<std::string>& notes) {
  constexpr size_t kMost = 5;
  if (damaged.empty()) {
    return;
  }
  const std::vector<int64_t> first(
      damaged.begin(),
      damaged.begin() + static_cast<std::ptrdiff_t>(std::min(kMost, damaged.size())));
  notes.push_back(fmt::format(
      "{}: {} not complete and left out, probably of a killed process or a full disk: line {}{}",
      path.string(),
      damaged.size() == 1 ? "a line is" : counted(damaged.size(), "line") + " are",
      fmt::join(first, ", "),
      damaged.size() > kMost ? ", ..." : ""));
}

double number_in(const OrderedJson& value) {
  if (value.is_string()) {
    const std::string name = value.get<std::string>();
    const double infinity = std::numeric_limits<double>::infinity();
    return name == "Infinity"    ? infinity
           : name == "-Infinity" ? -infinity
                                 : std::numeric_limits<double>::quiet_NaN();
  }
  return value.get<double>();
}

}  // namespace lockstep::cli
