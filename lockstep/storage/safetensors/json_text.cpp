// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/safetensors/json_text.h"

#include <cmath>
#include <functional>
#include <iterator>
#include <set>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/storage/safetensors/safetensors_header.h"

namespace lockstep::storage {
namespace {

using Json = nlohmann::json;

void check_representable(
    const std::string& path, const Json& value, const std::string& place, int depth) {
  const auto refuse = [&](const char* why) {
    throw CheckpointError(path, fmt::format("cannot be written; {} at {}", why, in_quotes(place)));
  };
  if (depth > kMaxJsonDepth) {
    refuse("the JSON is nested too deeply");
  }
  if (value.is_number_float() && !std::isfinite(value.get<double>())) {
    refuse("the value is infinite or NaN, which JSON does not have");
  }
  if (value.is_binary() || value.is_discarded()) {
    refuse("the value is binary data, which JSON does not have");
  }
  if (value.is_structured()) {
    for (const auto& [key, child] : value.items()) {
      check_representable(path, child, std::string(place).append("/").append(key), depth + 1);
    }
  }
}

/// Throws for a repeated key, of which nlohmann would keep the last.
class KeyGuard {
 public:
  KeyGuard(const std::string& path, bool only_outline) : path_(path), only_outline_(only_outline) {}

  bool operator()(int depth, Json::parse_event_t event, const Json& parsed) {
    if (depth > kMaxJsonDepth) {
      throw CheckpointError(path_, fmt::format("is nested deeper than {} levels", kMaxJsonDepth));
    }
    if (event == Json::parse_event_t::object_start) {
      keys_.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      keys_.pop_back();
    } else if (event == Json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys_.back().insert(key).second) {
        throw CheckpointError(path_, fmt::format("has the key {} twice", in_quotes(key)));
      }
    }
    const bool nests =
        event == Json::parse_event_t::object_start || event == Json::parse_event_t::array_start;
    return !(only_outline_ && nests && depth > 0);
  }

 private:
  const std::string& path_;
  bool only_outline_;
  std::vector<std::set<std::string>> keys_;
};

Json parse_guarded(const std::string& path, std::string_view text, bool only_outline) {
  // The parser treats a NUL as the end of the text.
  if (text.find('\0') != std::string_view::npos) {
    throw CheckpointError(path, "is not valid JSON; it contains a NUL byte");
  }
  KeyGuard guard(path, only_outline);
  try {
    return Json::parse(text.begin(), text.end(), std::ref(guard));
  } catch (const Json::exception& error) {
    throw CheckpointError(path, fmt::format("is not valid JSON; {}", in_quotes(error.what())));
  }
}

}  // namespace

std::string render_json(const std::string& path, const Json& value) {
  check_representable(path, value, "", 0);
  try {
    return value.dump(2) + "\n";
  } catch (const Json::exception& error) {
    throw CheckpointError(path, fmt::format("cannot be written; {}", in_quotes(error.what())));
  }
}

Json parse_json(const std::string& path, std::string_view text) {
  return parse_guarded(path, text, false);
}

Json parse_json_outline(const std::string& path, std::string_view text) {
  Json outline = parse_guarded(path, text, true);
  // The parser keeps the keys of some discarded values.
  if (outline.is_object()) {
    for (auto item = outline.begin(); item != outline.end();) {
      item = item->is_discarded() ? outline.erase(item) : std::next(item);
    }
  }
  return outline;
}

}  // namespace lockstep::storage
