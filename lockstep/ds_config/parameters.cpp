// SPDX-License-Identifier: Apache-2.0
#include "lockstep/ds_config/parameters.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::ds_config {

void Parameters::add(Parameter parameter) {
  all_.push_back(std::move(parameter));
}

void Parameters::replace(Parameter parameter) {
  const auto same = std::find_if(all_.begin(), all_.end(), [&](const Parameter& other) {
    return other.name == parameter.name;
  });
  LOCKSTEP_ASSERT(same != all_.end(), "unknown parameter " + parameter.name);
  *same = std::move(parameter);
}

bool Parameters::flag(const std::string& name) const {
  return std::get<bool>(at(name).value);
}

int64_t Parameters::integer(const std::string& name) const {
  return std::get<int64_t>(at(name).value);
}

double Parameters::number(const std::string& name) const {
  return std::get<double>(at(name).value);
}

const std::string& Parameters::text(const std::string& name) const {
  return std::get<std::string>(at(name).value);
}

const std::vector<double>& Parameters::numbers(const std::string& name) const {
  return std::get<std::vector<double>>(at(name).value);
}

const Resolved<ParameterValue>* Parameters::find(const std::string& name) const {
  const auto found = std::find_if(
      all_.begin(), all_.end(), [&](const Parameter& parameter) { return parameter.name == name; });
  return found == all_.end() ? nullptr : &found->value;
}

const Resolved<ParameterValue>& Parameters::at(const std::string& name) const {
  const Resolved<ParameterValue>* const found = find(name);
  LOCKSTEP_ASSERT(found != nullptr, "unknown parameter " + name);
  return *found;
}

}  // namespace lockstep::ds_config
