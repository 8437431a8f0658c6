// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/setup/plugin_options.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/text/words.h"
#include "lockstep/ds_config/ds_config.h"
#include "lockstep/ds_config/keys/key_table.h"
#include "lockstep/ds_config/keys/scalar_values.h"
#include "lockstep/engine/setup/accelerator_options.h"

namespace lockstep {
namespace {

constexpr const char* kPluginWhere = "DeepSpeedPlugin";

/// The keys beside zero_optimization that an Accelerator honours, or that only report.
constexpr std::array<std::string_view, 6> kHonoured = {
    "gradient_accumulation_steps",
    "fp16.enabled",
    "bf16.enabled",
    "fp16.initial_scale_power",
    "fp16.loss_scale_window",
    "steps_per_print"};

/// A key, or the section of keys, with a text about it.
struct KeyText {
  std::string_view path;
  std::string_view text;
};

/// Lists keys of the engine with the value that is what an Accelerator does without them. Other
/// booleans of the engine have their default.
constexpr std::array<KeyText, 7> kEngineKeys = {{
    {"fp16.loss_scale", "0"},
    {"fp16.hysteresis", "1"},
    {"gradient_clipping", "0"},
    {"gradient_allreduce_op", "mean"},
    {"zero_optimization.ignore_unused_parameters", "true"},
    {"zero_optimization.compute_grad_norm", "false"},
    {"bf16.check_grad_overflow", "false"},
}};

/// Lists what to do instead of a key, by the beginning of its path.
constexpr std::array<KeyText, 5> kInstead = {{
    {"optimizer", "create the optimizer in the program"},
    {"scheduler", "create the scheduler in the program"},
    {"gradient_clipping",
     "call accelerator.clip_grad_norm_(model.parameters(), max_norm) before optimizer.step()"},
    {"train_batch_size", "the loaders have the batch size; write 'auto'"},
    {"train_micro_batch_size_per_gpu", "the loaders have the batch size; write 'auto'"},
}};

bool is_value(std::string_view value, const config::Node& node) {
  const auto number = ds_config::number_of(node);
  return lower(node.text) == value || (number && value == fmt::format("{}", *number));
}

/// Returns whether a value is the default of a key that is a boolean.
bool is_default_of_boolean(const ds_config::KeySpec& spec, const config::Node& node) {
  ds_config::DsConfig unset;
  return std::visit(
      [&](auto field) {
        if constexpr (!std::is_same_v<decltype(field), std::monostate>) {
          const auto value = field(unset, spec.path).value;
          if constexpr (std::is_same_v<decltype(value), const bool>) {
            return ds_config::truth_of(node) == value;
          }
        }
        return false;
      },
      spec.field);
}

bool is_on(const config::Node& root, const std::string& precision) {
  const config::Node* const section = root.find(precision);
  const config::Node* const enabled = section == nullptr ? nullptr : section->find("enabled");
  return enabled != nullptr && ds_config::truth_of(*enabled).value_or(false);
}

/// Checks that an Accelerator honours the keys of a file.
class HonouredKeys {
 public:
  explicit HonouredKeys(const config::Node& root) : root_(root) {}

  void check(const config::Node& section, const std::string& prefix) const {
    for (const config::Entry& entry : section.entries) {
      const std::string path = prefix + entry.key;
      if (entry.value.kind == config::Node::Kind::kMap) {
        if (!is_unused_precision(path)) {
          check(entry.value, path + ".");
        }
      } else if (!is_honoured(path) && !has_no_effect(path, entry.value)) {
        throw ConfigError(
            kPluginWhere,
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
    return (section == "fp16" || section == "bf16") && !is_on(root_, section);
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
    return std::ranges::find(kEngineKeys, path, &KeyText::path) != kEngineKeys.end();
  }

  static bool has_no_effect(const std::string& path, const config::Node& node) {
    const auto found = std::ranges::find(kEngineKeys, path, &KeyText::path);
    if (found != kEngineKeys.end()) {
      return is_value(found->text, node);
    }
    const ds_config::KeySpec* const spec = ds_config::find_key(path);
    return spec != nullptr && is_default_of_boolean(*spec, node);
  }

  static std::string_view instead_of(const std::string& path) {
    const std::string section = path.substr(0, path.find('.'));
    const auto found = std::ranges::find(kInstead, section, &KeyText::path);
    return found == kInstead.end() ? "remove it" : found->text;
  }

  const config::Node& root_;
};

bool is_given(const ds_config::Origin& origin) {
  return origin.kind == ds_config::Origin::Kind::kFile;
}

/// Throws the errors of a reading. Their places are not the program's: it has a dict, or a file
/// that was completed.
void refuse_errors(const ds_config::Reading& reading) {
  std::string what;
  for (const ds_config::Diagnostic& error : reading.errors) {
    what += (what.empty() ? "" : "; ") + error.what;
  }
  if (!what.empty()) {
    throw ConfigError(kPluginWhere, what);
  }
}

}  // namespace

AcceleratorOptions plugin_options(const config::Document& document) {
  // First, since a reader's error might ask for more of a section that has to go.
  HonouredKeys(document.root).check(document.root, "");
  const ds_config::Reading reading = ds_config::read_ds_config(document, std::nullopt);
  refuse_errors(reading);
  for (const ds_config::Diagnostic& note : reading.notes) {
    if (!note.what.starts_with("gradient_clipping ")) {  // The program clips, or does not.
      log_info(fmt::format("[{}] {}", kPluginWhere, note.what));
    }
  }
  const ds_config::DsConfig& config = reading.config;
  AcceleratorOptions options;
  set_zero_options(config, TrainedModel{}, options);
  if (const config::Node* const steps = document.root.find("gradient_accumulation_steps")) {
    options.gradient_accumulation_steps =
        ds_config::integer_of(*steps).value_or(options.gradient_accumulation_steps);
  }
  if (config.fp16.enabled.value && is_given(config.fp16.initial_scale_power.origin)) {
    options.grad_scaler.init_scale =
        std::ldexp(1.0, static_cast<int>(config.fp16.initial_scale_power.value));
  }
  if (config.fp16.enabled.value && is_given(config.fp16.loss_scale_window.origin)) {
    options.grad_scaler.growth_interval = config.fp16.loss_scale_window.value;
  }
  return options;
}

}  // namespace lockstep
