// SPDX-License-Identifier: Apache-2.0
#include "lockstep/ds_config/keys/scalar_values.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/env.h"
#include "lockstep/base/text/suggest.h"
#include "lockstep/base/text/words.h"

namespace lockstep::ds_config {

using config::Node;
using Kind = Node::Kind;

namespace {

bool is_bare(const Node& node) {
  return node.kind == Kind::kScalar && !node.quoted;
}

std::string limits_of(const KeySpec& spec) {
  constexpr double kLarge = 1e300;
  const auto text = [](double limit) { return fmt::format("{}", limit); };
  if (spec.least == std::numeric_limits<double>::min()) {
    return " above 0";
  }
  if (spec.least < -kLarge) {
    return "";
  }
  return spec.most > kLarge ? " of at least " + text(spec.least)
                            : fmt::format(" from {} to {}", text(spec.least), text(spec.most));
}

bool fits(const KeySpec& spec, std::optional<double> number) {
  return number && *number >= spec.least && *number <= spec.most;
}

bool all_fit(const KeySpec& spec, const Node& node) {
  return node.kind == Kind::kList &&
         std::all_of(node.items.begin(), node.items.end(), [&](const Node& item) {
           return fits(spec, number_of(item));
         });
}

bool is_pair(const KeySpec& spec, const Node& node) {
  if (node.kind != Kind::kList || node.items.size() != 2) {
    return false;
  }
  const bool null_first = spec.first_may_be_null && node.items[0].kind == Kind::kNull;
  return (null_first || fits(spec, number_of(node.items[0]))) &&
         fits(spec, number_of(node.items[1]));
}

bool is_valid(const KeySpec& spec, const Node& node) {
  switch (spec.kind) {
    case KeyKind::kBoolean:
      return truth_of(node).has_value();
    case KeyKind::kInteger:
      return integer_of(node) && fits(spec, number_of(node));
    case KeyKind::kNumber:
      return fits(spec, number_of(node));
    case KeyKind::kText:
      return quoted_text_of(node).has_value();
    case KeyKind::kTexts:
      return quoted_text_of(node) ||
             (node.kind == Kind::kList &&
              std::all_of(node.items.begin(), node.items.end(), [](const Node& item) {
                return quoted_text_of(item).has_value();
              }));
    case KeyKind::kNumbers:
      return fits(spec, number_of(node)) || (all_fit(spec, node) && !node.items.empty());
    case KeyKind::kPair:
      return is_pair(spec, node);
    case KeyKind::kIntegers:
      return all_fit(spec, node) &&
             std::all_of(node.items.begin(), node.items.end(), [](const Node& item) {
               return integer_of(item).has_value();
             });
    case KeyKind::kChoice:
      return quoted_text_of(node) && word_among(node.text, spec.choices);
    case KeyKind::kSection:
    case KeyKind::kParams:
      return node.kind == Kind::kMap;
    case KeyKind::kMaps:
      return node.kind == Kind::kList && std::ranges::all_of(node.items, [](const Node& item) {
               return item.kind == Kind::kMap;
             });
    case KeyKind::kAny:
      return true;
  }
  return false;
}

/// Returns a hint for a value in the wrong form: in quotes, 1 for true, a misspelt word.
std::string hint_for(const KeySpec& spec, const Node& node) {
  if (node.kind != Kind::kScalar) {
    return "";
  }
  Node bare = node;
  bare.quoted = !node.quoted;
  if (is_valid(spec, bare)) {
    return node.quoted ? "; write " + shown(node.text) : fmt::format("; write \"{}\"", node.text);
  }
  const auto truth = spec.kind == KeyKind::kBoolean ? truth_value(node.text) : std::nullopt;
  if (truth) {
    return *truth ? "; write true" : "; write false";
  }
  return spec.kind == KeyKind::kChoice ? did_you_mean(node.text, spec.choices) : "";
}

}  // namespace

std::string expected_of(const KeySpec& spec) {
  switch (spec.kind) {
    case KeyKind::kBoolean:
      return "true or false";
    case KeyKind::kInteger:
      return "a whole number" + limits_of(spec);
    case KeyKind::kNumber:
      return "a number" + limits_of(spec);
    case KeyKind::kText:
      return "text in quotes";
    case KeyKind::kTexts:
      return "a list of texts in quotes";
    case KeyKind::kNumbers:
      return fmt::format(
          "a number{}, or a list of them, one for each parameter group", limits_of(spec));
    case KeyKind::kPair:
      return fmt::format(
          "a list of two numbers{}{}",
          limits_of(spec),
          spec.first_may_be_null ? ", the first of which may be null" : "");
    case KeyKind::kIntegers:
      return fmt::format("a list of whole numbers{}", limits_of(spec));
    case KeyKind::kChoice:
      return fmt::format("one of \"{}\"", fmt::join(spec.choices, "\", \""));
    case KeyKind::kMaps:
      return "a list of sections: keys and values in { }";
    default:
      return "a section: keys and values in { }";
  }
}

std::optional<bool> truth_of(const Node& node) {
  if (!is_bare(node) || (node.text != "true" && node.text != "false")) {
    return std::nullopt;
  }
  return node.text == "true";
}

std::optional<double> number_of(const Node& node) {
  double number = 0;
  const char* const end = node.text.data() + node.text.size();
  const auto [stop, error] = std::from_chars(node.text.data(), end, number);
  const bool is_number =
      is_bare(node) && error == std::errc() && stop == end && std::isfinite(number);
  return is_number ? std::optional(number) : std::nullopt;
}

std::optional<int64_t> integer_of(const Node& node) {
  if (const auto parsed = is_bare(node) ? parse_integer(node.text) : std::nullopt) {
    return parsed;
  }
  constexpr double kEnd = 9.2e18;  // Below 2^63.
  const auto number = number_of(node);
  if (!number || std::trunc(*number) != *number || std::abs(*number) > kEnd) {
    return std::nullopt;
  }
  return static_cast<int64_t>(*number);
}

std::optional<std::string> quoted_text_of(const Node& node) {
  return node.kind == Kind::kScalar && node.quoted ? std::optional(node.text) : std::nullopt;
}

bool is_auto(const Node& node) {
  return quoted_text_of(node) == "auto";
}

std::optional<std::string> word_among(
    const std::string& text, const std::vector<std::string>& words) {
  const auto found = std::find_if(words.begin(), words.end(), [&](const std::string& word) {
    return lower(word) == lower(text);
  });
  return found == words.end() ? std::nullopt : std::optional(*found);
}

std::optional<std::string> fault_of(const KeySpec& spec, const Node& node) {
  if (is_valid(spec, node)) {
    return std::nullopt;
  }
  return fmt::format("got {}, expected {}{}", shown(node), expected_of(spec), hint_for(spec, node));
}

std::string shown(const std::string& text) {
  constexpr size_t kMost = 80;
  if (text.size() <= kMost) {
    return text;
  }
  size_t end = kMost;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0U) == 0x80U) {
    --end;  // Not within a character.
  }
  return text.substr(0, end) + "...";
}

std::string shown(const Node& node) {
  switch (node.kind) {
    case Kind::kNull:
      return "null";
    case Kind::kScalar:
      return node.quoted ? fmt::format("\"{}\" in quotes", shown(node.text)) : shown(node.text);
    case Kind::kList:
      return "a list";
    case Kind::kMap:
      return "a section";
  }
  return "";
}

}  // namespace lockstep::ds_config
