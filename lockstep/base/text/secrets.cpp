// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/text/secrets.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

namespace lockstep {
namespace {

constexpr std::array<std::string_view, 7> kSecretWords = {
    "TOKEN", "KEY", "PASSWORD", "PASSWD", "SECRET", "CREDENTIAL", "AUTH"};

bool is_secret(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) {
    return static_cast<char>(std::toupper(c));
  });
  return std::any_of(kSecretWords.begin(), kSecretWords.end(), [&](std::string_view word) {
    return name.find(word) != std::string::npos;
  });
}

/// Replaces "http://me:secret@host" by "http://(hidden)@host".
std::string without_password(std::string value) {
  constexpr std::string_view kScheme = "://";
  for (size_t at = value.find(kScheme); at != std::string::npos; at = value.find(kScheme, at)) {
    at += kScheme.size();
    const size_t host_end = std::min(value.find_first_of("/ ,", at), value.size());
    const size_t sign = value.rfind('@', host_end);
    if (sign != std::string::npos && sign > at && sign < host_end) {
      value.replace(at, sign - at, kHidden);
    }
  }
  return value;
}

}  // namespace

std::string shown_value(const std::string& name, const std::string& value) {
  return is_secret(name) ? kHidden : without_password(value);
}

}  // namespace lockstep
