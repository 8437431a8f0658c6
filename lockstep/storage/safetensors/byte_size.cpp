// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/safetensors/byte_size.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/storage/safetensors/safetensors_header.h"

namespace lockstep::storage {
namespace {

constexpr std::array<std::pair<std::string_view, double>, 6> kUnits = {
    {{"", 1}, {"B", 1}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}}};
constexpr double kMostBytes = 1e18;

}  // namespace

uint64_t parse_bytes(const std::string& where, const std::string& text) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const char* const begin = text.data() + std::min(text.find_first_not_of(' '), text.size());
  const auto parsed = std::from_chars(begin, end, number);
  std::string unit;
  for (const char* at = parsed.ptr; at != end; ++at) {
    if (*at != ' ') {
      unit += static_cast<char>(std::toupper(static_cast<unsigned char>(*at)));
    }
  }
  for (const auto& [name, factor] : kUnits) {
    const double bytes = number * factor;
    // The first comparison is also false for NaN.
    if (unit == name && parsed.ec == std::errc() && bytes >= 1 && bytes <= kMostBytes) {
      return static_cast<uint64_t>(bytes);
    }
  }
  throw ConfigError(
      where,
      fmt::format(
          "is not a size; got {}, expected a positive number with KB, MB, GB or TB; try 5GB",
          in_quotes(text)));
}

std::string format_bytes(uint64_t bytes) {
  if (bytes < 1000) {
    return fmt::format("{} B", bytes);
  }
  constexpr std::string_view kPrefixes = "kMGTPE";
  auto value = static_cast<double>(bytes) / 1000;
  size_t prefix = 0;
  // 999.5 would be printed with four digits.
  for (; value >= 999.5; ++prefix) {
    value /= 1000;
  }
  const int digits = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}B", value, digits, kPrefixes[prefix]);
}

}  // namespace lockstep::storage
