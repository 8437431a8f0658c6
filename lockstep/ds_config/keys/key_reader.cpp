// SPDX-License-Identifier: Apache-2.0
#include "lockstep/ds_config/keys/key_reader.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/text/split.h"
#include "lockstep/base/text/suggest.h"
#include "lockstep/base/text/words.h"

namespace lockstep::ds_config {

using config::Entry;
using config::Node;
using config::Place;

namespace {

std::string path_in(const std::string& section, const std::string& key) {
  return section.empty() ? key : section + "." + key;
}

/// Returns the value as text for a hint.
std::string value_to_write(const Node& node) {
  if (node.kind != Node::Kind::kScalar) {
    return "...";
  }
  return node.quoted ? fmt::format("\"{}\"", shown(node.text)) : shown(node.text);
}

/// Returns whether the value is the accepted one of a refused key.
bool is_accepted(const KeySpec& spec, const Node& node) {
  if (spec.accepted_value.empty() || node.kind != Node::Kind::kScalar) {
    return false;
  }
  Node accepted = node;
  accepted.text = spec.accepted_value;
  return spec.kind == KeyKind::kInteger ? integer_of(node) == integer_of(accepted)
                                        : lower(node.text) == lower(spec.accepted_value);
}

/// Returns whether the value is "auto" as a placeholder, not as the text of a key that accepts any
/// text.
bool asks_for_auto(const KeySpec& spec, const Node& node) {
  switch (spec.kind) {
    case KeyKind::kText:
      return spec.auto_rule == AutoRule::kRefused && is_auto(node);
    case KeyKind::kTexts:
    case KeyKind::kSection:
    case KeyKind::kParams:
    case KeyKind::kMaps:
    case KeyKind::kAny:
      return false;
    default:
      return is_auto(node);
  }
}

/// Returns the value of an enum whose word is `text`, in any case.
template <typename E>
E value_of(const std::string& text) {
  size_t index = 0;
  for (size_t i = 0; i < kWordsOf<E>.size(); ++i) {
    if (lower(std::string(kWordsOf<E>[i])) == lower(text)) {
      index = i;
    }
  }
  return static_cast<E>(index);
}

}  // namespace

void KeyReader::check(const Node& section, const std::string& path) {
  for (const Entry& written : section.entries) {
    const std::string name = path_in(path, written.key);
    // A key with a dot is unknown, though the table writes paths of nested keys with dots.
    const bool has_dot = written.key.find('.') != std::string::npos;
    if (has_dot) {
      unknown_dotted(written, path);
      continue;
    }
    const KeySpec* const spec = find_key(name);
    if (spec == nullptr) {
      unknown(written, name, keys_of(path));
      continue;
    }
    const Entry* const bare = without_quotes(*spec, written);
    const Entry& entry = bare != nullptr ? *bare : written;
    if (!spec->successor.empty()) {
      check_other_name(*spec, section, entry);
      continue;
    }
    // The old form of a stage.
    const bool is_old_zero = name == "zero_optimization" && truth_of(entry.value).has_value();
    if (!is_old_zero && !check_entry(*spec, entry, name)) {
      continue;
    }
    keep(
        name,
        {.value = &entry.value, .key = entry.place, .is_auto = asks_for_auto(*spec, entry.value)});
    if (spec->kind == KeyKind::kSection) {
      check(entry.value, name);
    }
  }
}

const Entry* KeyReader::without_quotes(const KeySpec& spec, const Entry& entry) {
  if (!spec.may_be_quoted || !quoted_text_of(entry.value)) {
    return nullptr;
  }
  Entry bare = entry;
  bare.value.quoted = false;
  if (fault_of(spec, bare.value)) {
    return nullptr;
  }
  note(
      entry.value.place,
      fmt::format(
          "{0} is \"{1}\" in quotes and counts as {1}; write {1}",
          spec.path,
          shown(entry.value.text)));
  return &unquoted_.emplace_back(std::move(bare));
}

void KeyReader::check_other_name(const KeySpec& spec, const Node& section, const Entry& entry) {
  // After the section's own path and its dot.
  const std::string prefix = spec.path.substr(0, spec.path.size() - entry.key.size());
  for (const Entry& other : section.entries) {
    const KeySpec* const other_spec = find_key(prefix + other.key);
    const bool same =
        other_spec != nullptr && &other != &entry &&
        (other_spec->path == spec.successor || other_spec->successor == spec.successor);
    if (same) {
      error(
          entry.place,
          fmt::format(
              "{} is another name of {}, which line {} sets already; remove {}",
              spec.path,
              spec.successor,
              other.place.line,
              entry.key));
      return;
    }
  }
  if (!check_entry(*find_key(spec.successor), entry, spec.path)) {
    return;
  }
  note(
      entry.place, fmt::format("{0} is another name of {1}; write {1}", spec.path, spec.successor));
  keep(
      spec.successor,
      {.value = &entry.value,
       .key = entry.place,
       .other_name = entry.key,
       .is_auto = asks_for_auto(spec, entry.value)});
  if (spec.kind == KeyKind::kSection) {
    check(entry.value, spec.successor);
  }
}

bool KeyReader::check_entry(const KeySpec& spec, const Entry& entry, const std::string& name) {
  const Node& value = entry.value;
  if (value.kind == Node::Kind::kNull && spec.may_be_null) {
    return false;
  }
  const bool refused = spec.status == KeyStatus::kRefused;
  if (!refused && asks_for_auto(spec, value)) {
    if (spec.auto_rule == AutoRule::kRefused) {
      error(
          value.place,
          fmt::format(
              "{} is \"auto\", which only Accelerate and the Trainer replace by a value; write {}",
              name,
              expected_of(spec)));
    }
    return spec.auto_rule == AutoRule::kDefault && spec.status == KeyStatus::kWorks;
  }
  if (const auto fault = fault_of(spec, value)) {
    error(value.place, fmt::format("invalid value for {}; {}", name, *fault));
    return false;
  }
  if (refused && !is_accepted(spec, value)) {
    error(
        entry.place,
        fmt::format(
            "{}{} is refused: {}",
            name,
            spec.accepted_value.empty() ? ""
                                        : fmt::format(", unless it is {},", spec.accepted_value),
            spec.description));
  }
  if (spec.status == KeyStatus::kIgnored) {
    note(entry.place, fmt::format("{} is ignored: {}", name, spec.description));
  }
  // The keys of an ignored section must be valid, too.
  return spec.status == KeyStatus::kWorks || (!refused && spec.kind == KeyKind::kSection);
}

bool KeyReader::has_error_in(const std::vector<std::string>& keys) const {
  return std::any_of(keys.begin(), keys.end(), [&](const std::string& key) {
    const Node* const node = document_.root.find(key);
    return node != nullptr && node->kind != Node::Kind::kNull && find(key) == nullptr;
  });
}

const KeyValue* KeyReader::find(const std::string& path) const {
  const auto found = found_.find(path);
  return found == found_.end() ? nullptr : &found->second;
}

void KeyReader::keep(const std::string& path, KeyValue found) {
  found_.insert_or_assign(path, std::move(found));
}

Origin KeyReader::origin_of(const KeyValue& found) const {
  const std::string place = config::where(document_, found.value->place);
  if (found.is_auto) {
    return {Origin::Kind::kDefault, fmt::format("\"auto\" at {}", place)};
  }
  return {
      Origin::Kind::kFile,
      place + (found.other_name.empty() ? "" : fmt::format(", as {}", found.other_name))};
}

void KeyReader::error(Place place, const std::string& what) {
  reading_.errors.push_back({config::where(document_, place), place, what});
}

void KeyReader::note(Place place, const std::string& what) {
  reading_.notes.push_back({config::where(document_, place), place, what});
}

void KeyReader::unknown(
    const Entry& entry, const std::string& name, const std::vector<std::string>& known) {
  error(
      entry.place, fmt::format("unknown key '{}'{}", shown(name), did_you_mean(entry.key, known)));
}

void KeyReader::unknown_dotted(const Entry& entry, const std::string& section) {
  const std::vector<std::string> parts = split(entry.key, '.');
  const std::string name = path_in(section, entry.key);
  if (find_key(path_in(section, parts.front())) == nullptr) {
    unknown(entry, name, keys_of(section));
    return;
  }
  std::string nested = fmt::format("\"{}\": {}", parts.back(), value_to_write(entry.value));
  for (size_t i = parts.size() - 1; i > 0; --i) {
    nested = fmt::format("\"{}\": {{{}}}", parts[i - 1], nested);
  }
  error(
      entry.place,
      fmt::format(
          "unknown key '{}'; got a name with dots, expected nested sections; write {}",
          shown(name),
          nested));
}

void KeyReader::set(const Node& node, std::vector<std::string>& value) {
  value.clear();
  if (node.kind != Node::Kind::kList) {
    value.push_back(node.text);
    return;
  }
  for (const Node& item : node.items) {
    value.push_back(item.text);
  }
}

void KeyReader::set(const Node& node, FloatDtype& value) {
  std::string word = lower(node.text);
  constexpr std::string_view kTorch = "torch.";
  word.erase(0, word.starts_with(kTorch) ? kTorch.size() : 0);
  value = word == "float16"    ? FloatDtype::kFloat16
          : word == "bfloat16" ? FloatDtype::kBfloat16
                               : value_of<FloatDtype>(node.text);
}

void KeyReader::set(const Node& node, OffloadDevice& value) {
  value = value_of<OffloadDevice>(node.text);
}

void KeyReader::set(const Node& node, TagValidation& value) {
  value = value_of<TagValidation>(node.text);
}

void KeyReader::set(const Node& node, AllreduceOp& value) {
  value = value_of<AllreduceOp>(node.text);
}

}  // namespace lockstep::ds_config
