// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/host/slurm_hosts.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "lockstep/base/env.h"
#include "lockstep/base/text/split.h"

namespace lockstep {
namespace {

constexpr size_t kMostHosts = 65536;

using HostNames = std::optional<std::vector<std::string>>;

/// Formats a number with at least `width` digits.
std::string padded(int64_t number, size_t width) {
  const std::string digits = std::to_string(number);
  return std::string(width > digits.size() ? width - digits.size() : 0, '0') + digits;
}

bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

/// Expands "07-09" to 07, 08, 09, and "12" to itself.
HostNames numbers_of_range(const std::string& range) {
  const size_t dash = range.find('-');
  const std::string first = range.substr(0, dash);
  const std::string last = dash == std::string::npos ? first : range.substr(dash + 1);
  if (!is_number(first) || !is_number(last)) {
    return std::nullopt;
  }
  const auto from = parse_integer(first);
  const auto to = parse_integer(last);
  if (!from || !to || *to < *from || *to - *from >= static_cast<int64_t>(kMostHosts)) {
    return std::nullopt;
  }
  std::vector<std::string> numbers;
  for (int64_t number = *from; number <= *to; ++number) {
    numbers.push_back(padded(number, first.size()));
  }
  return numbers;
}

/// Expands "07-09,12", the text between brackets.
HostNames numbers_of(const std::string& ranges) {
  std::vector<std::string> numbers;
  for (const std::string& range : split(ranges, ',')) {
    const HostNames more = numbers_of_range(range);
    if (!more || numbers.size() + more->size() > kMostHosts) {
      return std::nullopt;
    }
    numbers.insert(numbers.end(), more->begin(), more->end());
  }
  return numbers;
}

/// Appends each of `endings` to each of `names`; the ending changes fastest.
HostNames joined(const std::vector<std::string>& names, const std::vector<std::string>& endings) {
  if (names.size() * endings.size() > kMostHosts) {
    return std::nullopt;
  }
  std::vector<std::string> all;
  for (const std::string& name : names) {
    for (const std::string& ending : endings) {
      all.push_back(name + ending);
    }
  }
  return all;
}

/// Expands "rack[1-2]n[3,5]", which has no comma outside brackets.
HostNames hosts_of_item(const std::string& item) {
  HostNames names = std::vector<std::string>{""};
  for (size_t at = 0; at < item.size() && names;) {
    const size_t open = std::min(item.find('[', at), item.size());
    names = joined(*names, {item.substr(at, open - at)});
    if (open == item.size()) {
      return names;
    }
    const size_t close = item.find(']', open);
    if (close == std::string::npos) {
      return std::nullopt;
    }
    const HostNames numbers = numbers_of(item.substr(open + 1, close - open - 1));
    names = numbers && names ? joined(*names, *numbers) : std::nullopt;
    at = close + 1;
  }
  return names;
}

/// Splits the list at the commas outside brackets.
std::vector<std::string> items_of(const std::string& list) {
  std::vector<std::string> items(1);
  bool in_brackets = false;
  for (const char c : list) {
    in_brackets = c == '[' || (in_brackets && c != ']');
    if (c == ',' && !in_brackets) {
      items.emplace_back();
    } else {
      items.back() += c;
    }
  }
  return items;
}

}  // namespace

std::vector<std::string> slurm_hosts(const std::string& node_list) {
  std::vector<std::string> hosts;
  for (const std::string& item : items_of(node_list)) {
    const HostNames names = hosts_of_item(item);
    if (item.empty() || !names || hosts.size() + names->size() > kMostHosts) {
      return {};
    }
    hosts.insert(hosts.end(), names->begin(), names->end());
  }
  return hosts;
}

}  // namespace lockstep
