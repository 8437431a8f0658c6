// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/plan/hostfile.h"

#include <algorithm>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text/suggest.h"
#include "lockstep/launcher/plan/text_position.h"

namespace lockstep::launcher {
namespace {

constexpr int64_t kMostSlots = 65536;

struct Word {
  std::string text;
  size_t at;  ///< In its line.
};

std::vector<Word> words_of(const FileLine& line) {
  const std::string text = line.text.substr(0, line.text.find('#'));
  std::vector<Word> words;
  for (size_t begin = text.find_first_not_of(kSpaces); begin != std::string::npos;) {
    const size_t end = std::min(text.find_first_of(kSpaces, begin), text.size());
    words.push_back({text.substr(begin, end - begin), begin});
    begin = text.find_first_not_of(kSpaces, end);
  }
  return words;
}

int parse_slots(const FileLine& line, const std::string& text, size_t at, const std::string& key) {
  const auto number = parse_integer(text);
  if (!number || *number < 1 || *number > kMostSlots) {
    line.refuse(
        at,
        fmt::format(
            "invalid value '{}' for {}; expected a number of ranks from 1 to {}{}",
            text,
            key,
            kMostSlots,
            number == 0 ? "; delete the line, or put # before it" : ""));
  }
  return static_cast<int>(*number);
}

/// Returns the colon before the number in `NAME:N` and `[ADDRESS]:N`. An IPv6 address without
/// brackets has several colons and no number.
std::optional<size_t> number_colon(const std::string& word) {
  const size_t colon = word.rfind(':');
  if (colon == std::string::npos || colon == 0) {
    return std::nullopt;
  }
  const bool bracketed = word.front() == '[';
  const bool counts = bracketed ? word[colon - 1] == ']' : word.find(':') == colon;
  return counts ? std::optional(colon) : std::nullopt;
}

/// Reads `slots=` and `max_slots=`, the rest of a line after the name.
void read_keys(const FileLine& line, const std::vector<Word>& words, bool counted, Host& host) {
  static const std::vector<std::string> known_keys = {"slots", "max_slots", "max-slots"};
  std::optional<int> most;
  for (size_t i = 1; i < words.size(); ++i) {
    const auto& [text, at] = words[i];
    const size_t equals = text.find('=');
    const std::string key = text.substr(0, equals);
    if (equals == std::string::npos ||
        std::find(known_keys.begin(), known_keys.end(), key) == known_keys.end()) {
      line.refuse(
          at,
          fmt::format(
              "unknown field '{}'; expected slots=N or max_slots=N{}",
              text,
              did_you_mean(key, known_keys)));
    }
    const int number = parse_slots(line, text.substr(equals + 1), at + equals + 1, key);
    if (key != "slots") {
      most = number;
    } else if (counted) {
      line.refuse(
          at, fmt::format("the slots of {} are given twice; expected one number", host.name));
    } else {
      host.slots = number;
      counted = true;
    }
  }
  if (most && *most < host.slots) {
    line.refuse(
        words[0].at,
        fmt::format("{} has {} slots, but max_slots={}", host.name, host.slots, *most));
  }
}

Host parse_host(const FileLine& line, const std::vector<Word>& words) {
  Host host{.name = words[0].text};
  const std::optional<size_t> colon = number_colon(host.name);
  if (colon) {
    host.slots =
        parse_slots(line, host.name.substr(*colon + 1), words[0].at + *colon + 1, "the number");
    host.name.resize(*colon);
  }
  if (host.name.front() == '[' && host.name.back() == ']') {
    host.name = host.name.substr(1, host.name.size() - 2);
  }
  if (const std::string fault = host_name_fault(host.name); !fault.empty()) {
    line.refuse(words[0].at, fmt::format("invalid host name '{}': it {}", words[0].text, fault));
  }
  read_keys(line, words, colon.has_value(), host);
  return host;
}

}  // namespace

std::string host_name_fault(const std::string& name) {
  constexpr size_t kLongestName = 255;
  if (name.empty()) {
    return "is empty";
  }
  if (name.front() == '-') {
    return "begins with '-', as an option of ssh would";
  }
  if (const size_t at = name.find('@');
      at != std::string::npos && (at == 0 || at + 1 == name.size())) {
    return "has an '@' without a user before and a host after it";
  }
  if (name.size() > kLongestName) {
    return fmt::format("is longer than {} characters", kLongestName);
  }
  const size_t odd = name.find_first_not_of(
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:@%-");
  if (odd != std::string::npos) {
    const auto byte = static_cast<unsigned char>(name[odd]);
    return fmt::format(
        "holds {}; expected letters, digits and ._:@%- only",
        byte < 0x80 ? fmt::format("'{}'", name[odd]) : fmt::format("the byte {}", int{byte}));
  }
  return "";
}

std::vector<Host> parse_hostfile(const std::string& text, const std::string& file) {
  std::vector<Host> hosts;
  std::map<std::string, int> lines;
  for_each_line(text, file, [&](const FileLine& line) {
    const std::vector<Word> words = words_of(line);
    if (words.empty()) {
      return;
    }
    hosts.push_back(parse_host(line, words));
    const auto [first, is_new] = lines.emplace(hosts.back().name, line.number);
    if (!is_new) {
      line.refuse(
          words[0].at,
          fmt::format(
              "host {} is listed twice, first in line {}; give it one line with all its slots",
              first->first,
              first->second));
    }
  });
  if (hosts.empty()) {
    throw ConfigError(
        "lockstep launch",
        fmt::format("{}:1:1: names no host; expected lines like 'node1 slots=4'", file));
  }
  return hosts;
}

std::vector<Host> read_hostfile(const std::string& file) {
  return parse_hostfile(read_small_file(file), file);
}

}  // namespace lockstep::launcher
