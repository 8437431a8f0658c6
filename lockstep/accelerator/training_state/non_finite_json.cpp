// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/training_state/non_finite_json.h"

#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

#include "lockstep/storage/safetensors/json_text.h"

namespace lockstep::internal {
namespace {

using nlohmann::json;

constexpr const char* kMark = "lockstep.non_finite";

/// Returns whether a value looks like a mark. A user's object that does is marked itself.
bool is_marked(const json& value) {
  return value.is_object() && value.size() == 1 && value.contains(kMark);
}

const char* text_of(double number) {
  return std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf";
}

json number_of(const json& text) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return text == "inf"    ? kInfinity
         : text == "-inf" ? -kInfinity
                          : std::numeric_limits<double>::quiet_NaN();
}

json encoded(const json& value, int depth) {
  if (value.is_number_float() && !std::isfinite(value.get<double>())) {
    return {{kMark, text_of(value.get<double>())}};
  }
  // A deeper value is refused when it is written.
  if (!value.is_structured() || depth > storage::kMaxJsonDepth) {
    return value;
  }
  json copy = value;
  for (json& child : copy) {
    child = encoded(child, depth + 1);
  }
  return is_marked(value) ? json{{kMark, std::move(copy)}} : copy;
}

json decoded(const json& value, int depth) {
  if (!value.is_structured() || depth > storage::kMaxJsonDepth) {
    return value;
  }
  const bool marked = is_marked(value);
  if (marked && value.at(kMark).is_string()) {
    return number_of(value.at(kMark));
  }
  json copy = marked && value.at(kMark).is_object() ? value.at(kMark) : value;
  for (json& child : copy) {
    child = decoded(child, depth + 1);
  }
  return copy;
}

}  // namespace

json without_non_finite(const json& value) {
  return encoded(value, 0);
}

json with_non_finite(const json& value) {
  return decoded(value, 0);
}

}  // namespace lockstep::internal
