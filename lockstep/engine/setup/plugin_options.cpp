// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/setup/plugin_options.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/ds_config/ds_config.h"
#include "lockstep/ds_config/keys/key_table.h"
#include "lockstep/ds_config/keys/scalar_values.h"
#include "lockstep/engine/setup/accelerator_options.h"

namespace lockstep {
namespace {

constexpr const char* kWhere = "DeepSpeedPlugin";

/// The keys beside zero_optimization that an Accelerator honours, or that only report.
constexpr std::array<std::string_view, 6> kHonoured = {
    "gradient_accumulation_steps",
    "fp16.enabled",
    "bf16.enabled",
    "fp16.initial_scale_power",
    "fp16.loss_scale_window",
    "steps_per_print"};

/// A key of the engine, and what an Accelerator does without it.
struct EngineKey {
  std::string_view path;
  std::string_view value;
};
constexpr std::array<EngineKey, 9> kEngineKeys = {{
    {"fp16.loss_scale", "0"},
    {"fp16.hysteresis", "1"},
    {"fp16.consecutive_hysteresis", "false"},
    {"gradient_clipping", "0"},
    {"gradient_allreduce_op", "mean"},
    {"wall_clock_breakdown", "false"},
    {"zero_optimization.ignore_unused_parameters", "true"},
    {"zero_optimization.compute_grad_norm", "false"},
    {"bf16.check_grad_overflow", "false"},
}};

/// What to do instead of a key, by the beginning of its path.
constexpr std::array<EngineKey, 5> kInstead = {{
    {"optimizer", "create the optimizer in the program"},
    {"scheduler", "create the scheduler in the program"},
    {"gradient_clipping",
     "call accelerator.clip_grad_norm_(model.parameters(), max_norm) before optimizer.step()"},
    {"train_batch_size", "the loaders have the batch size; write 'auto'"},
    {"train_micro_batch_size_per_gpu", "the loaders have the batch size; write 'auto'"},
}};

bool is_default(std::string_view value, const config::Node& node) {
  const auto number = ds_config::number_of(node);
  return node.text == value || (number && value == fmt::format("{}", *number));
}

/// Checks the keys of one section, which its reader has accepted.
class HonouredKeys {
 public:
  explicit HonouredKeys(const ds_config::DsConfig& config) : config_(config) {}

  void check(const config::Node& section, const std::string& prefix) const {
    for (const config::Entry& entry : section.entries) {
      const std::string path = prefix + entry.key;
      if (entry.value.kind == config::Node::Kind::kMap) {
        if (!is_unused_precision(path)) {
          check(entry.value, path + ".");
        }
      } else if (!is_honoured(path) && !has_no_effect(path, entry.value)) {
        throw ConfigError(
            kWhere,
            fmt::format(
                "the Accelerator does not honour {} of the ds_config; got {}; {}",
                path,
                entry.value.quoted ? fmt::format("'{}'", entry.value.text)
                                   : ds_config::shown(entry.value),
                instead_of(path)));
      }
    }
  }

 private:
  bool is_unused_precision(const std::string& section) const {
    return (section == "fp16" && !config_.fp16.enabled.value) ||
           (section == "bf16" && !config_.bf16.enabled.value);
  }

  static bool is_honoured(const std::string& path) {
    if (std::ranges::find(kHonoured, path) != kHonoured.end()) {
      return true;
    }
    const ds_config::KeySpec* const spec = ds_config::find_key(path);
    const bool works = spec == nullptr || spec->status == ds_config::KeyStatus::kWorks;
    return !works || (path.starts_with("zero_optimization") && !is_of_engine(path));
  }

  static bool is_of_engine(const std::string& path) {
    return std::ranges::find(kEngineKeys, path, &EngineKey::path) != kEngineKeys.end();
  }

  static bool has_no_effect(const std::string& path, const config::Node& node) {
    const auto found = std::ranges::find(kEngineKeys, path, &EngineKey::path);
    return found != kEngineKeys.end() && is_default(found->value, node);
  }

  static std::string_view instead_of(const std::string& path) {
    const std::string section = path.substr(0, path.find('.'));
    const auto found = std::ranges::find(kInstead, section, &EngineKey::path);
    return found == kInstead.end() ? "remove it" : found->value;
  }

  const ds_config::DsConfig& config_;
};

bool is_given(const ds_config::Origin& origin) {
  return origin.kind == ds_config::Origin::Kind::kFile;
}

}  // namespace

AcceleratorOptions plugin_options(const config::Document& document) {
  const ds_config::Reading reading = ds_config::read_ds_config(document, std::nullopt);
  ds_config::expect_no_errors(reading);
  const ds_config::DsConfig& config = reading.config;
  HonouredKeys(config).check(document.root, "");
  AcceleratorOptions options;
  set_zero_options(config, TrainedModel{}, options);
  if (const config::Node* const steps = document.root.find("gradient_accumulation_steps")) {
    options.gradient_accumulation_steps =
        ds_config::integer_of(*steps).value_or(options.gradient_accumulation_steps);
  }
  if (is_given(config.fp16.initial_scale_power.origin)) {
    options.grad_scaler.init_scale =
        std::ldexp(1.0, static_cast<int>(config.fp16.initial_scale_power.value));
  }
  if (is_given(config.fp16.loss_scale_window.origin)) {
    options.grad_scaler.growth_interval = config.fp16.loss_scale_window.value;
  }
  return options;
}

}  // namespace lockstep
