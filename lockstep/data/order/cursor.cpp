// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/loader/cursor.h"

#include <array>
#include <limits>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

constexpr std::array kKeys = {"seed", "epoch", "batches", "first_sample"};

uint64_t read(const nlohmann::json& json, const char* key, uint64_t max) {
  const auto found = json.find(key);
  if (found == json.end()) {
    throw ConfigError("cursor", fmt::format("key '{}' is missing; got {}", key, json.dump()));
  }
  // A positive number parsed from text is unsigned, one that code assigned from an int is not.
  const bool whole =
      found->is_number_unsigned() || (found->is_number_integer() && found->get<int64_t>() >= 0);
  if (!whole || found->get<uint64_t>() > max) {
    throw ConfigError(
        "cursor",
        fmt::format(
            "'{}' makes no sense; got {}, expected a whole number from 0 to {}",
            key,
            found->dump(),
            max));
  }
  return found->get<uint64_t>();
}

}  // namespace

void to_json(nlohmann::json& json, const Cursor& cursor) {
  json = {
      {"seed", cursor.seed},
      {"epoch", cursor.epoch},
      {"batches", cursor.batches},
      {"first_sample", cursor.first_sample}};
}

void from_json(const nlohmann::json& json, Cursor& cursor) {
  if (!json.is_object()) {
    throw ConfigError(
        "cursor",
        fmt::format("got {}, expected an object with {}", json.dump(), fmt::join(kKeys, ", ")));
  }
  for (const auto& item : json.items()) {
    bool known = false;
    for (const char* key : kKeys) {
      known = known || item.key() == key;
    }
    if (!known) {
      throw ConfigError(
          "cursor",
          fmt::format("unknown key '{}'; expected {}", item.key(), fmt::join(kKeys, ", ")));
    }
  }
  constexpr auto kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  const Cursor read_cursor{
      .seed = read(json, "seed", std::numeric_limits<uint64_t>::max()),
      .epoch = static_cast<int64_t>(read(json, "epoch", kMax)),
      .batches = static_cast<int64_t>(read(json, "batches", kMax)),
      .first_sample = static_cast<int64_t>(read(json, "first_sample", kMax))};
  cursor = read_cursor;
}

}  // namespace lockstep::data
