// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/setup/plugin_options.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/accelerator/options/option_text.h"
#include "lockstep/base/error.h"
#include "lockstep/base/test_errors.h"
#include "lockstep/ds_config/ds_config.h"
#include "lockstep/ds_config/keys/key_table.h"
#include "lockstep/engine/setup/accelerator_options.h"
#include "lockstep/zero_options/zero_rows.h"

namespace lockstep {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

config::Document document_of(const json& file) {
  return config::parse_document("ds.json", file.dump(), config::Format::kCommentedJson);
}

std::map<std::string, std::string> rows_of(const AcceleratorOptions& options) {
  std::map<std::string, std::string> rows;
  const ZeroPlugin plugin = options.zero.value_or(ZeroPlugin{.stage = 0});
  visit_zero_options(plugin, [&](const char* name, const auto& value, const ZeroRule&) {
    rows[name] = internal::option_text(value);
  });
  return rows;
}

std::map<std::string, std::string> by_plugin(const json& zero) {
  return rows_of(plugin_options(document_of({{"zero_optimization", zero}})));
}

std::map<std::string, std::string> by_engine(const json& zero) {
  const json file = {{"zero_optimization", zero}, {"train_micro_batch_size_per_gpu", 1}};
  const ds_config::Reading reading = ds_config::read_ds_config(document_of(file), /*world_size=*/3);
  ds_config::expect_no_errors(reading);
  return rows_of(accelerator_options(reading.config, {}, TrainedModel{}, nullptr));
}

bool is_valid(const json& zero) {
  const config::Document document = document_of({{"zero_optimization", zero}});
  return ds_config::read_ds_config(document, std::nullopt).errors.empty();
}

/// Returns values to try for a key.
std::vector<json> values_for(const ds_config::KeySpec& spec) {
  switch (spec.kind) {
    case ds_config::KeyKind::kBoolean:
      return {true, false};
    case ds_config::KeyKind::kInteger:
      return {0, 3};
    case ds_config::KeyKind::kNumber:
      return {0.5};
    case ds_config::KeyKind::kChoice:
      return {spec.choices.begin(), spec.choices.end()};
    case ds_config::KeyKind::kText:
      return {"/tmp"};
    default:
      return {};
  }
}

/// Returns sections in which a key may have an effect: of stages, and of offload devices.
std::vector<json> sections() {
  std::vector<json> all;
  for (const int stage : {1, 2, 3}) {
    const json plain = {{"stage", stage}};
    all.push_back(plain);
    for (const json& device :
         {json{{"device", "cpu"}}, json{{"device", "nvme"}, {"nvme_path", "/var/tmp"}}}) {
      all.push_back(plain);
      all.back()["offload_optimizer"] = device;
      all.push_back(all.back());
      all.back()["offload_param"] = device;
    }
  }
  return all;
}

bool is_of_engine(const std::string& key) {
  return key == "ignore_unused_parameters" || key == "compute_grad_norm";
}

TEST(PluginOptions, AreTheEnginesForEveryKeyOfZeroAndEachHasAnEffect) {
  const std::string prefix = "zero_optimization.";
  for (const ds_config::KeySpec& spec : ds_config::all_keys()) {
    const std::string key =
        spec.path.starts_with(prefix) ? spec.path.substr(prefix.size()) : std::string();
    // A key under another name has the effect of its successor, which may be none.
    if (key.empty() || spec.status != ds_config::KeyStatus::kWorks || is_of_engine(key) ||
        values_for(spec).empty() || !spec.successor.empty()) {
      continue;
    }
    SCOPED_TRACE(key);
    bool has_effect = false;
    for (const json& section : sections()) {
      for (const json& value : values_for(spec)) {
        json changed = section;
        std::string pointer = "/" + key;
        std::ranges::replace(pointer, '.', '/');
        changed[json::json_pointer(pointer)] = value;
        if (!is_valid(changed) || !is_valid(section)) {
          continue;
        }
        const auto rows = by_plugin(changed);
        EXPECT_EQ(rows, by_engine(changed)) << changed;
        has_effect = has_effect || rows != by_plugin(section);
      }
    }
    EXPECT_TRUE(has_effect);
  }
}

TEST(PluginOptions, HaveAccumulationAndTheLossScale) {
  const AcceleratorOptions options = plugin_options(document_of(
      {{"gradient_accumulation_steps", 3},
       {"fp16", {{"enabled", true}, {"initial_scale_power", 4}, {"loss_scale_window", 5}}},
       {"zero_optimization", {{"stage", 0}}}}));
  EXPECT_EQ(options.gradient_accumulation_steps, 3);
  EXPECT_EQ(options.grad_scaler.init_scale, 16);
  EXPECT_EQ(options.grad_scaler.growth_interval, 5);
  EXPECT_FALSE(options.zero.has_value());
}

TEST(PluginOptions, RefuseKeysThatOnlyTheEngineHonours) {
  const std::vector<std::pair<json, std::string>> refused = {
      {{{"optimizer", {{"type", "Adam"}}}}, "optimizer.type of the ds_config; got 'Adam'; create"},
      {{{"gradient_clipping", 0.5}}, "gradient_clipping of the ds_config; got 0.5; call"},
      {{{"train_batch_size", 64}}, "train_batch_size of the ds_config; got 64; the loaders have"},
      {{{"fp16", {{"enabled", true}, {"hysteresis", 3}}}}, "fp16.hysteresis"},
      {{{"zero_optimization", {{"stage", 1}, {"ignore_unused_parameters", false}}}}, "got false"}};
  for (const auto& [file, text] : refused) {
    EXPECT_THAT(
        error_of<ConfigError>([&, &given = file] { plugin_options(document_of(given)); }),
        AllOf(HasSubstr("the Accelerator does not honour"), HasSubstr(text)));
  }
}

TEST(PluginOptions, AcceptValuesThatChangeNothing) {
  EXPECT_NO_THROW(plugin_options(document_of(
      {{"gradient_clipping", 0.0},
       {"wall_clock_breakdown", false},
       {"steps_per_print", 10},
       {"bf16", {{"enabled", true}, {"check_grad_overflow", false}}},
       {"fp16", {{"enabled", false}, {"hysteresis", 5}}},
       {"zero_optimization", {{"stage", 2}, {"ignore_unused_parameters", true}}}})));
}

}  // namespace
}  // namespace lockstep
