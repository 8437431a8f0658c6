// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/state/optimizer_settings.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"

namespace lockstep::optim {
namespace {

using nlohmann::json;

template <typename Options>
NamedOptions torch_adam_options(Options& options) {
  return {
      {"lr", &options.lr()},
      {"betas", &options.betas()},
      {"eps", &options.eps()},
      {"weight_decay", &options.weight_decay()},
      {"amsgrad", &options.amsgrad()}};
}

/// Infinity becomes a string, since JSON has none: LAMB's max_coeff may be infinite.
json to_json(double value) {
  return std::isinf(value) ? json(value > 0 ? "inf" : "-inf") : json(value);
}
json to_json(bool value) {
  return value;
}
json to_json(const std::optional<double>& value) {
  return value ? to_json(*value) : json();
}
template <typename First>
json to_json(const std::pair<First, double>& value) {
  return json::array({to_json(value.first), to_json(value.second)});
}
json to_json(const std::tuple<double, double>& value) {
  return json::array({to_json(std::get<0>(value)), to_json(std::get<1>(value))});
}

bool take(const json& from, double& to) {
  if (from == "inf" || from == "-inf") {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    to = from == "inf" ? kInfinity : -kInfinity;
    return true;
  }
  if (!from.is_number()) {
    return false;
  }
  to = from.get<double>();
  return true;
}
bool take(const json& from, bool& to) {
  if (!from.is_boolean()) {
    return false;
  }
  to = from.get<bool>();
  return true;
}
bool take(const json& from, std::optional<double>& to) {
  if (from.is_null()) {
    to.reset();
    return true;
  }
  return take(from, to.emplace());
}
template <typename First>
bool take(const json& from, std::pair<First, double>& to) {
  return from.is_array() && from.size() == 2 && take(from[0], to.first) && take(from[1], to.second);
}
bool take(const json& from, std::tuple<double, double>& to) {
  return from.is_array() && from.size() == 2 && take(from[0], std::get<0>(to)) &&
         take(from[1], std::get<1>(to));
}

}  // namespace

NamedOptions torch_named_options(torch::optim::OptimizerOptions& options) {
  namespace from = torch::optim;
  if (auto* sgd = dynamic_cast<from::SGDOptions*>(&options)) {
    return {
        {"lr", &sgd->lr()},
        {"momentum", &sgd->momentum()},
        {"dampening", &sgd->dampening()},
        {"weight_decay", &sgd->weight_decay()},
        {"nesterov", &sgd->nesterov()}};
  }
  if (auto* adam = dynamic_cast<from::AdamOptions*>(&options)) {
    return torch_adam_options(*adam);
  }
  if (auto* adamw = dynamic_cast<from::AdamWOptions*>(&options)) {
    return torch_adam_options(*adamw);
  }
  if (auto* adagrad = dynamic_cast<from::AdagradOptions*>(&options)) {
    return {
        {"lr", &adagrad->lr()},
        {"lr_decay", &adagrad->lr_decay()},
        {"weight_decay", &adagrad->weight_decay()},
        {"initial_accumulator_value", &adagrad->initial_accumulator_value()},
        {"eps", &adagrad->eps()}};
  }
  if (auto* rmsprop = dynamic_cast<from::RMSpropOptions*>(&options)) {
    return {
        {"lr", &rmsprop->lr()},
        {"alpha", &rmsprop->alpha()},
        {"eps", &rmsprop->eps()},
        {"weight_decay", &rmsprop->weight_decay()},
        {"momentum", &rmsprop->momentum()},
        {"centered", &rmsprop->centered()}};
  }
  return {};
}

json options_to_json(const NamedOptions& options) {
  json group = json::object();
  for (const NamedOption& option : options) {
    group[option.name] =
        std::visit([](const auto* value) { return to_json(*value); }, option.value);
  }
  return group;
}

void options_from_json(const NamedOptions& options, const json& group, const std::string& path) {
  if (!group.is_object()) {
    throw CheckpointError(
        path, fmt::format("holds {} for a parameter group; expected an object", group.dump()));
  }
  for (const auto& [name, value] : group.items()) {
    const auto found = std::find_if(
        options.begin(), options.end(), [&, &wanted = name](const NamedOption& option) {
          return option.name == wanted;
        });
    if (found == options.end()) {
      throw CheckpointError(
          path, fmt::format("holds an option {}, which this program's optimizer lacks", name));
    }
    const bool taken =
        std::visit([&from = value](auto* to) { return take(from, *to); }, found->value);
    if (!taken) {
      throw CheckpointError(
          path,
          fmt::format(
              "holds {} = {}; this program's optimizer has {}",
              name,
              value.dump(),
              options_to_json({*found}).dump()));
    }
  }
}

}  // namespace lockstep::optim
