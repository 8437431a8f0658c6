// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/safetensors/saved_values.h"

#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/storage/safetensors/safetensors_header.h"

namespace lockstep::storage {

namespace {

using Json = nlohmann::json;

}  // namespace

SavedValues::SavedValues(const Json& object, std::string path, std::string where)
    : object_(&object), path_(std::move(path)), where_(std::move(where)) {
  if (!object.is_object()) {
    refuse_value(where_.empty() ? "its content" : where_, object, "an object");
  }
}

std::string SavedValues::place_of(const std::string& key) const {
  return where_.empty() ? key : where_ + "." + key;
}

void SavedValues::refuse_value(
    const std::string& place, const Json& got, const std::string& expected) const {
  constexpr auto kReplace = Json::error_handler_t::replace;
  throw CheckpointError(
      path_,
      fmt::format(
          "holds an invalid saved state; got {} for {}, expected {}",
          in_quotes(got.dump(-1, ' ', false, kReplace)),
          place,
          expected));
}

void SavedValues::refuse(const char* key, const std::string& expected) const {
  refuse_value(place_of(key), any(key), expected);
}

const Json& SavedValues::any(const char* key) const {
  const auto found = object_->find(key);
  if (found == object_->end()) {
    throw CheckpointError(
        path_, fmt::format("holds an invalid saved state; {} is missing", place_of(key)));
  }
  return *found;
}

bool SavedValues::has(const char* key) const {
  return object_->contains(key);
}

bool SavedValues::flag(const char* key) const {
  const Json& value = any(key);
  if (!value.is_boolean()) {
    refuse(key, "true or false");
  }
  return value.get<bool>();
}

std::string SavedValues::text(const char* key) const {
  const Json& value = any(key);
  if (!value.is_string()) {
    refuse(key, "a text");
  }
  return value.get<std::string>();
}

double SavedValues::number(const char* key) const {
  const Json& value = any(key);
  if (!value.is_number()) {
    refuse(key, "a number");
  }
  return value.get<double>();
}

int64_t SavedValues::count_at(
    const std::string& place, const Json& value, int64_t least, int64_t most) const {
  constexpr auto kLargest = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() || value.get<uint64_t>() <= kLargest);
  if (!fits || value.get<int64_t>() < least || value.get<int64_t>() > most) {
    refuse_value(
        place,
        value,
        most == std::numeric_limits<int64_t>::max()
            ? fmt::format("a whole number from {} on", least)
            : fmt::format("a whole number from {} to {}", least, most));
  }
  return value.get<int64_t>();
}

int64_t SavedValues::count(const char* key, int64_t least, int64_t most) const {
  return count_at(place_of(key), any(key), least, most);
}

std::vector<int64_t> SavedValues::counts(const char* key, int64_t most) const {
  std::vector<int64_t> values;
  for (const Json& value : list(key)) {
    values.push_back(count_at(fmt::format("{}[{}]", place_of(key), values.size()), value, 0, most));
  }
  return values;
}

std::vector<double> SavedValues::numbers(const char* key) const {
  std::vector<double> values;
  for (const Json& value : list(key)) {
    if (!value.is_number()) {
      refuse(key, "a list of numbers");
    }
    values.push_back(value.get<double>());
  }
  return values;
}

const Json& SavedValues::list(const char* key, int64_t size) const {
  const Json& value = any(key);
  if (!value.is_array() || (size >= 0 && value.size() != static_cast<size_t>(size))) {
    refuse(key, size < 0 ? "a list" : fmt::format("a list of {}", size));
  }
  return value;
}

SavedValues SavedValues::object(const char* key) const {
  return {any(key), path_, place_of(key)};
}

}  // namespace lockstep::storage
