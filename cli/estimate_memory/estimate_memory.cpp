// SPDX-License-Identifier: Apache-2.0
#include "cli/estimate_memory/estimate_memory.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <map>
#include <system_error>

#include <fmt/format.h>

#include "cli/common/report.h"
#include "lockstep/base/error.h"

namespace lockstep::cli {
namespace {

/// Returns the factor by which a dtype is smaller than float32.
double divisor_of(const std::string& dtype) {
  if (dtype == "float32") {
    return 1;
  }
  if (dtype == "int8") {
    return 4;
  }
  return dtype == "int4" ? 8 : 2;
}

int64_t share(int64_t bytes, int64_t ranks) {
  return (bytes + ranks - 1) / ranks;
}

constexpr double kDeepSpeedBuffers = 1.5;

/// Returns 18 bytes per parameter, divided by the ranks: Python's int(18 * parameters / ranks),
/// whose operands are exact as doubles.
int64_t sharded_state_bytes(int64_t parameters, int64_t ranks) {
  return static_cast<int64_t>(static_cast<double>(18 * parameters) / static_cast<double>(ranks));
}

const std::map<std::string, int64_t>& optimizers() {
  static const std::map<std::string, int64_t> numbers = {
      {"adam", 2},
      {"adamw", 2},
      {"lamb", 2},
      {"sgd", 0},
      {"sgd-momentum", 1},
      {"lion", 1},
      {"adagrad", 1},
      {"rmsprop", 1},
      {"adadelta", 2},
      {"adamax", 2},
      {"nadam", 2},
      {"radam", 2},
      {"asgd", 1},
      {"rprop", 2}};
  return numbers;
}

/// Returns the factor of a unit; 0 if it is unknown.
double unit_of(char c) {
  switch (std::toupper(static_cast<unsigned char>(c))) {
    case 'K':
      return 1e3;
    case 'M':
      return 1e6;
    case 'B':
    case 'G':
      return 1e9;
    case 'T':
      return 1e12;
    default:
      return 0;
  }
}

}  // namespace

double DtypeEstimate::Training::most() const {
  return std::max({model, gradients, optimizer, step});
}

DtypeEstimate estimate_dtype(
    const std::string& dtype, double float32_bytes, double layer_bytes, double state_numbers) {
  const double divisor = divisor_of(dtype);
  DtypeEstimate estimate{
      .largest_layer = layer_bytes / divisor, .total = float32_bytes / divisor, .training = {}};
  const double optimizer = float32_bytes * state_numbers;
  if (dtype == "float32") {
    estimate.training = {
        .model = float32_bytes,
        .gradients = float32_bytes,
        .optimizer = optimizer,
        .step = 2 * float32_bytes + optimizer};
  } else if (divisor == 2) {
    estimate.training = {
        .model = float32_bytes,
        .gradients = float32_bytes + std::floor(float32_bytes / 2),
        .optimizer = optimizer,
        .step = optimizer};
  }
  return estimate;
}

ZeroEstimate estimate_lockstep(
    const TrainingState& state, int stage, Offload offload, int64_t ranks) {
  constexpr int64_t kWidth = 4;
  const auto part = [&](int64_t numbers, int from_stage) {
    return stage >= from_stage ? share(kWidth * numbers, ranks) : kWidth * numbers;
  };
  const int64_t parameters = part(state.parameters, 3);
  const int64_t gradients = part(state.parameters, 2);
  const int64_t optimizer = part(state.optimizer_numbers, 1);
  ZeroEstimate estimate{.device = gradients, .host = 0};
  (offload == Offload::kNone ? estimate.device : estimate.host) += optimizer;
  (offload == Offload::kOptimizerAndParameters ? estimate.host : estimate.device) += parameters;
  return estimate;
}

ZeroEstimate estimate_zero(const TrainingState& state, int stage, Offload offload, int64_t ranks) {
  const int64_t width = state.mixed_precision ? 2 : 4;
  const int64_t parameters = width * state.parameters;
  const int64_t gradients = parameters;
  const int64_t optimizer =
      4 * state.optimizer_numbers + (state.mixed_precision ? 4 * state.parameters : 0);
  ZeroEstimate estimate;
  estimate.device = stage >= 3 ? share(parameters, ranks) : parameters;
  if (offload == Offload::kNone) {
    estimate.device += stage >= 2 ? share(gradients, ranks) : gradients;
    estimate.device += stage >= 1 ? share(optimizer, ranks) : optimizer;
    return estimate;
  }
  const int64_t on_host = 4 * state.optimizer_numbers + 8 * state.parameters;
  estimate.device += stage >= 2 ? 0 : gradients;
  estimate.host = share(on_host, ranks);
  if (offload == Offload::kOptimizerAndParameters) {
    estimate.host += share(parameters, ranks);
    estimate.device -= share(parameters, ranks);
  }
  return estimate;
}

ZeroEstimate deepspeed_zero2(const DeepSpeedSetup& setup, bool offload_optimizer) {
  const int64_t ranks = setup.hosts * setup.ranks_per_host;
  if (offload_optimizer) {
    const int64_t host = setup.parameters * std::max<int64_t>(4 * ranks, 16);
    return {
        .device = 2 * setup.parameters,
        .host = static_cast<int64_t>(static_cast<double>(host) * kDeepSpeedBuffers)};
  }
  const int64_t host = setup.parameters * 4 * setup.ranks_per_host;
  return {
      .device = 2 * setup.parameters + sharded_state_bytes(setup.parameters, ranks),
      .host = static_cast<int64_t>(static_cast<double>(host) * kDeepSpeedBuffers)};
}

ZeroEstimate deepspeed_zero3(const DeepSpeedSetup& setup, Offload offload, bool zero_init) {
  const int64_t ranks = setup.hosts * setup.ranks_per_host;
  const int64_t layer = 4 * setup.largest_layer_parameters;
  const double per_host = 1.0 / static_cast<double>(setup.hosts);
  const auto parameters = static_cast<double>(setup.parameters);
  const auto unsharded = static_cast<double>(4 * setup.ranks_per_host);
  if (offload == Offload::kNone) {
    const int64_t built = zero_init ? setup.largest_layer_parameters : setup.parameters;
    const int64_t host = built * 4 * setup.ranks_per_host;
    return {
        .device = layer + sharded_state_bytes(setup.parameters, ranks),
        .host = static_cast<int64_t>(static_cast<double>(host) * kDeepSpeedBuffers)};
  }
  const bool with_parameters = offload == Offload::kOptimizerAndParameters;
  const int64_t factor = with_parameters ? 18 : 16;
  // In Python's order, so that rounding is the same.
  const double host =
      zero_init ? static_cast<double>(setup.parameters * factor) * per_host * kDeepSpeedBuffers
                : parameters * std::max(unsharded, static_cast<double>(factor) * per_host) *
                      kDeepSpeedBuffers;
  const auto on_device =
      static_cast<int64_t>(static_cast<double>(2 * setup.parameters) / static_cast<double>(ranks));
  return {.device = layer + (with_parameters ? 0 : on_device), .host = static_cast<int64_t>(host)};
}

std::optional<int64_t> state_numbers_of(const std::string& optimizer) {
  const auto found = optimizers().find(optimizer);
  return found == optimizers().end() ? std::nullopt : std::optional(found->second);
}

std::vector<std::string> estimate_optimizers() {
  std::vector<std::string> names = {"adafactor"};
  for (const auto& [name, numbers] : optimizers()) {
    names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

int64_t parse_count(const std::string& option, const std::string& text) {
  const auto refuse = [&](const std::string& expected) -> ConfigError {
    return {
        "lockstep estimate-memory",
        fmt::format("invalid value '{}' for {}; expected {}", printable(text), option, expected)};
  };
  std::string digits;
  std::copy_if(
      text.begin(), text.end(), std::back_inserter(digits), [](char c) { return c != '_'; });
  const double unit = digits.empty() ? 0 : unit_of(digits.back());
  if (unit > 0) {
    digits.pop_back();
  }
  double number = 0;
  const char* const end = digits.data() + digits.size();
  const auto parsed = std::from_chars(digits.data(), end, number);
  if (digits.empty() || digits.front() == '-' || parsed.ec != std::errc() || parsed.ptr != end ||
      !std::isfinite(number)) {
    throw refuse("a number like 7b, 350M or 1.3e9");
  }
  const double count = number * (unit > 0 ? unit : 1);
  if (count < 1 || count > static_cast<double>(kMostParameters)) {
    throw refuse(fmt::format("a number from 1 to {}", with_commas(kMostParameters)));
  }
  // 0.1 has no exact double: smaller deviations are rounding errors.
  const double rounded = std::round(count);
  if (std::abs(count - rounded) > 1e-6 * std::max(1.0, count * 1e-6)) {
    throw refuse("a whole number of parameters");
  }
  return static_cast<int64_t>(rounded);
}

}  // namespace lockstep::cli
