// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>

#include "lockstep/engine/setup/config_document.h"

namespace lockstep {
namespace {

/// The 6 bits that a character stands for.
std::optional<uint32_t> bits_of(char character) {
  const auto from = [&](char first, uint32_t value) {
    return value + static_cast<uint32_t>(character - first);
  };
  if (character >= 'A' && character <= 'Z') {
    return from('A', 0);
  }
  if (character >= 'a' && character <= 'z') {
    return from('a', 26);
  }
  if (character >= '0' && character <= '9') {
    return from('0', 52);
  }
  if (character == '+' || character == '-') {
    return 62;
  }
  return character == '/' || character == '_' ? std::optional<uint32_t>(63) : std::nullopt;
}

}  // namespace

std::string plain_config_text(const std::string& text) {
  std::string_view digits = text;
  constexpr std::string_view kBlank = " \t\r\n";
  digits.remove_prefix(std::min(digits.find_first_not_of(kBlank), digits.size()));
  digits = digits.substr(0, digits.find_last_not_of(kBlank) + 1);
  if (digits.size() % 4 != 0) {
    return text;
  }
  for (int padding = 0; padding < 2 && digits.ends_with('='); ++padding) {
    digits.remove_suffix(1);
  }
  std::string plain;
  uint32_t held = 0;
  int bits = 0;
  for (const char digit : digits) {
    const auto value = bits_of(digit);
    if (!value) {
      return text;  // A configuration begins with a brace, which is none of them.
    }
    held = (held << 6U | *value) & 0xffffU;
    bits += 6;
    if (bits >= 8) {
      bits -= 8;
      plain += static_cast<char>(static_cast<unsigned char>(held >> static_cast<unsigned>(bits)));
    }
  }
  const size_t begin = plain.find_first_not_of(kBlank);
  return begin == std::string::npos || plain[begin] != '{' ? text : plain;
}

}  // namespace lockstep
