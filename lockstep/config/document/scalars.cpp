// SPDX-License-Identifier: Apache-2.0
#include "lockstep/config/document/scalars.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/env.h"
#include "lockstep/base/text/words.h"

namespace lockstep::config {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool all_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), is_digit);
}

/// Returns whether every YAML reader interprets `text` as text without quotes.
bool is_plain(const std::string& text) {
  constexpr std::array<std::string_view, 12> kWords = {
      "true", "false", "yes", "no", "on", "off", "y", "n", "null", "nan", "inf", "infinity"};
  const std::string word = lower(text);
  const bool is_word = std::find(kWords.begin(), kWords.end(), word) != kWords.end();
  const bool begins_well =
      !text.empty() && (std::isalpha(static_cast<unsigned char>(text[0])) != 0 || text[0] == '/');
  return begins_well && !is_word && std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '/' || c == '.' || c == '_' || c == '-' || c == '=';
         });
}

}  // namespace

std::optional<int64_t> integer_value(const std::string& text) {
  const std::string_view digits = std::string_view(text).substr(text.starts_with('-') ? 1 : 0);
  if (!all_digits(digits) || (digits.size() > 1 && digits[0] == '0')) {
    return std::nullopt;
  }
  return parse_integer(text);
}

std::optional<double> decimal_number(const std::string& text) {
  const size_t point = text.find('.');
  const std::string integer = text.substr(0, point);
  const bool is_integer = all_digits(integer) && (integer.size() == 1 || integer[0] != '0');
  if (!is_integer ||
      (point != std::string::npos && !all_digits(std::string_view(text).substr(point + 1)))) {
    return std::nullopt;
  }
  double number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && stop == text.data() + text.size() ? std::optional(number)
                                                                   : std::nullopt;
}

std::string number_hint(const std::string& text, double least, double most) {
  std::string bare = text;
  bare.erase(std::remove(bare.begin(), bare.end(), '_'), bare.end());
  if (bare.empty() || bare.find_first_not_of("0123456789abcdefABCDEFxX+-.") != std::string::npos ||
      std::none_of(bare.begin(), bare.end(), is_digit)) {
    return "";
  }
  char* end = nullptr;
  const double number = std::strtod(bare.c_str(), &end);
  constexpr double kMost = 1e15;  // Doubles represent every integer up to here.
  if (end != bare.c_str() + bare.size() || std::trunc(number) != number ||
      std::abs(number) > kMost || number < least || number > most) {
    return "";
  }
  return fmt::format("; write {}", static_cast<int64_t>(number));
}

std::string yaml_text(const std::string& text) {
  if (is_plain(text)) {
    return text;
  }
  // Every JSON string is a YAML string.
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace lockstep::config
