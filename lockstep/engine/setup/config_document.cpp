// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/setup/config_document.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "lockstep/accelerator/setup/run_context.h"
#include "lockstep/base/error.h"
#include "lockstep/ds_config/ds_config.h"

namespace lockstep {
namespace {

/// Returns the 6 bits of a base64 digit.
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

config::Document read_config_document(const InitializeOptions& options) {
  const std::filesystem::path& argument = options.args.deepspeed_config;
  if (!argument.empty() && !(options.config.empty() && options.config_json.empty())) {
    throw ConfigError(
        "initialize",
        fmt::format(
            "got a configuration from the program, and --deepspeed_config {} on the command line; "
            "give only one",
            argument.string()));
  }
  if (!argument.empty()) {
    return ds_config::read_ds_document(argument);
  }
  if (options.config.empty() && options.config_json.empty()) {
    // `lockstep launch --deepspeed-config-file FILE`.
    if (const auto file = internal::either_text(Environment::process(), "DEEPSPEED_CONFIG_FILE")) {
      return ds_config::read_ds_document(*file);
    }
    throw ConfigError(
        "initialize",
        "needs a configuration; give `config`, a file, or `config_json`, or launch with "
        "--deepspeed-config-file, or pass the result of add_config_arguments as `args`");
  }
  if (!options.config.empty() && !options.config_json.empty()) {
    throw ConfigError("initialize", "got both `config` and `config_json`; give only one");
  }
  if (!options.config.empty()) {
    return ds_config::read_ds_document(options.config);
  }
  return config::parse_document(
      "config_json", plain_config_text(options.config_json), config::Format::kCommentedJson);
}

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
      return text;  // Not base64: JSON begins with a brace.
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
