// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/flat_config.h"

#include <string>

#include <nlohmann/json.hpp>

namespace lockstep::tracking {
namespace {

using nlohmann::json;

void flatten(const json& value, const std::string& name, json& flat) {
  if (value.is_object()) {
    const std::string prefix = name.empty() ? "" : name + ".";
    for (const auto& [key, item] : value.items()) {
      flatten(item, std::string(prefix).append(key), flat);
    }
  } else if (value.is_array() || value.is_null()) {
    flat[name] = value.dump();
  } else {
    flat[name] = value;
  }
}

}  // namespace

json flat_config(const json& config) {
  json flat = json::object();
  flatten(config, "", flat);
  return flat;
}

}  // namespace lockstep::tracking
