// SPDX-License-Identifier: Apache-2.0
#include "python/bindings/json.h"

#include <cstdint>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"

namespace lockstep::python {
namespace {

std::string class_of(py::handle value) {
  return py::str(py::type::handle_of(value).attr("__name__"));
}

}  // namespace

nlohmann::json to_json(py::handle value, const char* where) {
  if (value.is_none()) {
    return nullptr;
  }
  if (py::isinstance<py::bool_>(value)) {
    return value.cast<bool>();
  }
  if (py::isinstance<py::int_>(value)) {
    return value.cast<int64_t>();
  }
  if (py::isinstance<py::float_>(value)) {
    return value.cast<double>();
  }
  if (py::isinstance<py::str>(value)) {
    return value.cast<std::string>();
  }
  if (py::isinstance<py::list>(value) || py::isinstance<py::tuple>(value)) {
    nlohmann::json array = nlohmann::json::array();
    for (const py::handle item : value) {
      array.push_back(to_json(item, where));
    }
    return array;
  }
  if (py::isinstance<py::dict>(value)) {
    nlohmann::json object = nlohmann::json::object();
    for (const auto& [key, item] : value.cast<py::dict>()) {
      if (!py::isinstance<py::str>(key)) {
        throw ConfigError(
            where, fmt::format("a key of a dict is of type {}; expected str", class_of(key)));
      }
      object[key.cast<std::string>()] = to_json(item, where);
    }
    return object;
  }
  throw ConfigError(
      where,
      fmt::format(
          "a value is of type {}; expected None, bool, int, float, str, list, tuple or dict",
          class_of(value)));
}

py::object from_json(const nlohmann::json& value) {
  switch (value.type()) {
    case nlohmann::json::value_t::boolean:
      return py::bool_(value.get<bool>());
    case nlohmann::json::value_t::number_integer:
      return py::int_(value.get<int64_t>());
    case nlohmann::json::value_t::number_unsigned:
      return py::int_(value.get<uint64_t>());
    case nlohmann::json::value_t::number_float:
      return py::float_(value.get<double>());
    case nlohmann::json::value_t::string:
      return py::str(value.get_ref<const std::string&>());
    case nlohmann::json::value_t::array: {
      py::list list;
      for (const nlohmann::json& item : value) {
        list.append(from_json(item));
      }
      return list;
    }
    case nlohmann::json::value_t::object: {
      py::dict dict;
      for (const auto& [key, item] : value.items()) {
        dict[py::str(key)] = from_json(item);
      }
      return dict;
    }
    default:
      return py::none();
  }
}

}  // namespace lockstep::python
