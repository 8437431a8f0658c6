// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/output/stream_choice.h"

#include <optional>

#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text/split.h"

namespace lockstep::launcher {
namespace {

[[noreturn]] void refuse(
    const std::string& flag, const std::string& text, const std::string& expected) {
  throw ConfigError(
      "lockstep launch",
      fmt::format("invalid value '{}' for {}; expected {}", text, flag, expected));
}

std::optional<Streams> streams_of(const std::string& text) {
  const auto number = parse_integer(text);
  if (!number || *number < 0 || *number > 3) {
    return std::nullopt;
  }
  return Streams{.out = (*number & 1) != 0, .err = (*number & 2) != 0};
}

size_t rank_of(
    const std::string& part, int ranks, const std::string& flag, const std::string& text) {
  const auto rank = parse_integer(part);
  if (!rank || *rank < 0 || *rank >= ranks) {
    refuse(flag, text, fmt::format("local ranks from 0 to {}, got '{}'", ranks - 1, part));
  }
  return static_cast<size_t>(*rank);
}

}  // namespace

std::vector<Streams> parse_streams(const std::string& text, int ranks, const std::string& flag) {
  const auto count = static_cast<size_t>(ranks);
  if (text.empty()) {
    return std::vector<Streams>(count);
  }
  constexpr const char* kExpected =
      "0 (none), 1 (stdout), 2 (stderr) or 3 (both), for all ranks or as RANK:NUMBER,...";
  if (const auto all = streams_of(text)) {
    return std::vector<Streams>(count, *all);
  }
  std::vector<Streams> streams(count);
  std::vector<bool> named(count);
  for (const std::string& part : split(text, ',')) {
    const size_t colon = part.find(':');
    const auto chosen =
        colon == std::string::npos ? std::nullopt : streams_of(part.substr(colon + 1));
    if (!chosen) {
      refuse(flag, text, kExpected);
    }
    const size_t rank = rank_of(part.substr(0, colon), ranks, flag, text);
    if (named[rank]) {
      refuse(flag, text, fmt::format("each local rank once, got {} twice", rank));
    }
    named[rank] = true;
    streams[rank] = *chosen;
  }
  return streams;
}

std::vector<bool> parse_shown_ranks(const std::string& text, int ranks, const std::string& flag) {
  if (text.empty()) {
    return std::vector<bool>(static_cast<size_t>(ranks), true);
  }
  std::vector<bool> shown(static_cast<size_t>(ranks));
  for (const std::string& part : split(text, ',')) {
    shown[rank_of(part, ranks, flag, text)] = true;
  }
  return shown;
}

}  // namespace lockstep::launcher
