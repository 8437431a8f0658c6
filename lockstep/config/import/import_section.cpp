// SPDX-License-Identifier: Apache-2.0
#include "lockstep/config/import/import_section.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text/suggest.h"
#include "lockstep/base/text/words.h"

namespace lockstep::config {

namespace {

using Kind = Node::Kind;

}  // namespace

Section::Section(const Document& file, const Node& map, std::string prefix)
    : file_(file), map_(map), prefix_(std::move(prefix)) {
  if (map.kind != Kind::kMap && map.kind != Kind::kNull) {
    throw ConfigError(
        where(file, map.place),
        fmt::format("invalid value for {}*; expected keys and values", prefix_));
  }
}

std::optional<std::string> Section::text(const std::string& key) const {
  const Node* const node = map_.find(key);
  if (node == nullptr || node->kind == Kind::kNull) {
    return std::nullopt;
  }
  if (node->kind != Kind::kScalar) {
    throw ConfigError(
        where(file_, node->place),
        fmt::format(
            "invalid value for {}{}; got a {}, expected one value",
            prefix_,
            key,
            node->kind == Kind::kMap ? "map" : "list"));
  }
  return node->text;
}

bool Section::truth(const std::string& key) const {
  const auto found = text(key);
  if (!found) {
    return false;
  }
  const auto value = truth_value(*found);
  if (!value) {
    throw ConfigError(
        place_of(key),
        fmt::format("invalid value '{}' for {}{}; expected true or false", *found, prefix_, key));
  }
  return *value;
}

void Section::set(ConfigValues& values, const std::string& key, const std::string& setting) const {
  const auto found = text(key);
  if (!found) {
    return;
  }
  check_value(*find_setting(setting), *found, place_of(key), prefix_ + key);
  values.settings[setting] = *found;
}

void Section::refuse_unknown(const std::vector<std::string>& known) const {
  for (const Entry& entry : map_.entries) {
    if (std::find(known.begin(), known.end(), entry.key) == known.end()) {
      throw ConfigError(
          where(file_, entry.place),
          fmt::format("unknown key '{}{}'{}", prefix_, entry.key, did_you_mean(entry.key, known)));
    }
  }
}

std::string Section::place_of(const std::string& key) const {
  const Node* const node = map_.find(key);
  return where(file_, node == nullptr ? map_.place : node->place);
}

}  // namespace lockstep::config
