// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/safetensors/slices.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/storage/safetensors/json_text.h"
#include "lockstep/storage/safetensors/safetensors_header.h"

namespace lockstep::storage {
namespace {

using Json = nlohmann::json;

// Limits elements so that their bytes, and their bits, fit into an int64 for every dtype.
constexpr int64_t kMostBits = 64;

[[noreturn]] void refuse(const std::string& path, const std::string& why, const std::string& name) {
  throw CheckpointError(
      path, fmt::format("has bad {} metadata; {}", kSlicesKey, why), in_quotes(name));
}

void check_slice(const std::string& path, const std::string& name, const Slice& slice) {
  const std::optional<int64_t> elements = element_count(slice.shape);
  if (!elements) {
    refuse(path, "the shape is negative or has too many elements", name);
  }
  if (slice.begin < 0 || slice.begin > *elements) {
    refuse(path, fmt::format("the slice begins at element {} of {}", slice.begin, *elements), name);
  }
}

std::optional<int64_t> count_of(const Json& value) {
  if (!value.is_number_unsigned() || !std::in_range<int64_t>(value.get<uint64_t>())) {
    return std::nullopt;
  }
  return value.get<int64_t>();
}

Slice parse_slice(const std::string& path, const std::string& name, const Json& json) {
  const bool known = json.is_object() && json.size() == 2 && json.contains("shape") &&
                     json.contains("begin") && json["shape"].is_array();
  if (!known) {
    refuse(
        path,
        fmt::format(R"(got {}, expected {{"begin": n, "shape": [...]}})", in_quotes(json.dump())),
        name);
  }
  Slice slice;
  const auto read = [&](const Json& value) {
    const std::optional<int64_t> count = count_of(value);
    if (!count) {
      refuse(path, fmt::format("got {}, expected a count", in_quotes(value.dump())), name);
    }
    return *count;
  };
  slice.begin = read(json["begin"]);
  for (const Json& size : json["shape"]) {
    slice.shape.push_back(read(size));
  }
  check_slice(path, name, slice);
  return slice;
}

}  // namespace

std::optional<int64_t> element_count(const std::vector<int64_t>& shape) {
  int64_t bits = kMostBits;
  bool empty = false;
  for (const int64_t size : shape) {
    empty = empty || size == 0;
    // Also limits the product of the other dimensions, from which strides are computed.
    if (size < 0 || __builtin_mul_overflow(bits, std::max<int64_t>(size, 1), &bits)) {
      return std::nullopt;
    }
  }
  return empty ? 0 : bits / kMostBits;
}

std::string render_slices(const std::string& path, const Slices& slices) {
  Json json = Json::object();
  for (const auto& [name, slice] : slices) {
    check_slice(path, name, slice);
    json[name] = {{"begin", slice.begin}, {"shape", slice.shape}};
  }
  try {
    return json.dump();
  } catch (const Json::exception& error) {
    throw CheckpointError(path, fmt::format("cannot be written; {}", in_quotes(error.what())));
  }
}

Slices parse_slices(const std::string& path, std::string_view text) {
  const Json json = parse_json(fmt::format("{}: {}", path, kSlicesKey), text);
  if (!json.is_object()) {
    throw CheckpointError(
        path,
        fmt::format(
            "has bad {} metadata; got {}, expected an object", kSlicesKey, json.type_name()));
  }
  Slices slices;
  for (const auto& [name, slice] : json.items()) {
    slices.emplace(name, parse_slice(path, name, slice));
  }
  return slices;
}

void check_slice_fits(
    const std::string& path,
    const std::string& name,
    const std::vector<int64_t>& entry_shape,
    const Slice& slice) {
  if (entry_shape.size() != 1) {
    throw CheckpointError(
        path,
        fmt::format(
            "has a slice of shape [{}]; expected one dimension", fmt::join(entry_shape, ", ")),
        in_quotes(name));
  }
  const int64_t elements = element_count(slice.shape).value();
  const int64_t count = entry_shape.front();
  if (count > elements - slice.begin) {
    throw CheckpointError(
        path,
        fmt::format(
            "has a slice beyond the end of the tensor; got elements {} to {} of {}",
            slice.begin,
            slice.begin + count,
            elements),
        in_quotes(name));
  }
}

}  // namespace lockstep::storage
