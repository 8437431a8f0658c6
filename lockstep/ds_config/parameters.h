// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "lockstep/ds_config/origin.h"
#include "lockstep/schedule/schedule.h"

namespace lockstep::ds_config {

/// A value of `params`. A list of numbers has one, or one for each parameter group; or is a pair,
/// in which null is NaN.
using ParameterValue = std::variant<bool, int64_t, double, std::string, std::vector<double>>;

struct Parameter {
  std::string name;
  Resolved<ParameterValue> value;
};

/// The `params` of an optimizer or a schedule: each known one, with its default if the file lacks
/// it. Parameters without either are absent.
class Parameters {
 public:
  void add(Parameter parameter);
  /// Replaces a present parameter.
  void replace(Parameter parameter);
  const std::vector<Parameter>& all() const { return all_; }

  bool has(const std::string& name) const { return find(name) != nullptr; }
  /// Returns the origin of a present parameter. The functions below return a present one's value.
  const Origin& origin(const std::string& name) const { return at(name).origin; }
  bool flag(const std::string& name) const;
  int64_t integer(const std::string& name) const;
  double number(const std::string& name) const;
  const std::string& text(const std::string& name) const;
  const std::vector<double>& numbers(const std::string& name) const;

 private:
  const Resolved<ParameterValue>* find(const std::string& name) const;
  const Resolved<ParameterValue>& at(const std::string& name) const;

  std::vector<Parameter> all_;
};

/// An optimizer in Lockstep's terms: the meaning of `type`, and its parameters with the names and
/// defaults of lockstep/optim.
struct OptimizerSection {
  Resolved<std::string> name;  ///< In lower case: "adamw", "lamb", "nadam".
  Parameters parameters;
};

struct SchedulerSection {
  Resolved<std::string> name;  ///< The file's name: "WarmupLR", "StepLR".
  Parameters parameters;
  /// Set if the parameters are valid.
  std::optional<schedule::Schedule> schedule = std::nullopt;
};

}  // namespace lockstep::ds_config
