// SPDX-License-Identifier: Apache-2.0
#include "lockstep/ds_config/keys/key_table.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/ds_config/keys/key_table.h"
#include "lockstep/ds_config/parameters/parameter_table.h"
#include "lockstep/ds_config/value_text.h"

namespace lockstep::ds_config {
namespace {

std::string text_of_file(const std::string& path) {
  std::ifstream file(LOCKSTEP_SOURCE_DIR "/" + path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(KeyTable, EachPathIsThereOnceBehindItsSection) {
  std::set<std::string> seen;
  for (const KeySpec& spec : all_keys()) {
    EXPECT_TRUE(seen.insert(spec.path).second) << spec.path;
    const size_t dot = spec.path.rfind('.');
    if (dot != std::string::npos) {
      EXPECT_TRUE(seen.contains(spec.path.substr(0, dot))) << spec.path;
    }
    if (!spec.successor.empty()) {
      const KeySpec* const successor = find_key(spec.successor);
      ASSERT_NE(successor, nullptr) << spec.path;
      EXPECT_EQ(successor->kind, spec.kind) << spec.path;
    }
  }
  EXPECT_EQ(find_key("nothing"), nullptr);
}

TEST(KeyTable, EachFieldIsAKeyThatWorksAndEachSuchKeyAField) {
  std::set<std::string> fields = {
      "train_batch_size",
      "train_micro_batch_size_per_gpu",
      "gradient_accumulation_steps",
      "optimizer.type",
      "optimizer.params",
      "scheduler.type",
      "scheduler.params",
      "tensor_parallel.partition_config.layer_specs",
      // They set fields that have newer names.
      "zero_optimization.cpu_offload",
      "zero_optimization.cpu_offload_param"};
  const DsConfig config;
  visit_fields(config, [&](const std::string& path, const auto&) {
    ASSERT_NE(find_key(path), nullptr) << path;
    fields.insert(path);
  });
  for (const KeySpec& spec : all_keys()) {
    const bool is_value = spec.kind != KeyKind::kSection && spec.successor.empty();
    EXPECT_EQ(fields.contains(spec.path), is_value && spec.status == KeyStatus::kWorks)
        << spec.path;
  }
}

TEST(KeyTable, RefusedAndIgnoredKeysSayWhy) {
  for (const KeySpec& spec : all_keys()) {
    if (spec.status != KeyStatus::kWorks) {
      EXPECT_GT(spec.description.size(), 10U) << spec.path;
    }
  }
}

/// The page has the tables of `lockstep ds-config keys --markdown`. If this fails, paste the new
/// output there.
TEST(KeyTable, IsThatOfThePage) {
  const std::string page = text_of_file("docs/ds_config.md");
  const auto is_there = [&](const std::string& table) {
    return page.find(table) != std::string::npos;
  };
  EXPECT_TRUE(is_there(render_markdown(key_rows())));
  EXPECT_TRUE(is_there(render_markdown(type_rows(optimizer_types()))));
  EXPECT_TRUE(is_there(render_markdown(type_rows(schedule_types()))));
}

/// Those of tests/golden/make_ds_config.py.
TEST(KeyTable, KnowsDeepSpeedsKeysAndHasItsDefaults) {
  const nlohmann::json golden =
      nlohmann::json::parse(text_of_file("tests/golden/ds_config.json")).at("defaults");
  for (const auto& [path, value] : golden.items()) {
    const KeySpec* const spec = find_key(path);
    ASSERT_NE(spec, nullptr) << path;
    if (!spec->accepted_value.empty() && !value.is_null()) {
      EXPECT_EQ(text_of(value), spec->accepted_value)
          << path;  // A file that says its default is right.
    }
  }
  const DsConfig config;
  visit_fields(config, [&](const std::string& path, const auto& field) {
    ASSERT_TRUE(golden.contains(path)) << path;
    if (path == "data_types.keep_in_fp32_modules") {
      // What a transformers model lists itself, which no module of C++ does.
      EXPECT_EQ(golden.at(path), "auto");
      EXPECT_TRUE(json_of(field.value).empty());
    } else if (
        path == "zero_optimization.reduce_bucket_size" ||
        path == "zero_optimization.stage3_max_live_parameters" ||
        path.find(".pipeline_") != std::string::npos) {
      // They depend on sizes in bytes here, or are on where DeepSpeed's are off.
      EXPECT_TRUE(json_of(field.value).is_null()) << path;
    } else if (path == "tensor_parallel.dtype") {
      // It is the compute dtype here. DeepSpeed only compares it with tp_model_init's.
      EXPECT_TRUE(json_of(field.value).is_null());
    } else {
      EXPECT_EQ(json_of(field.value), golden.at(path)) << path;
    }
  });
}

/// Whether a parameter's default, or the one value that is not refused, is the golden one.
bool agrees(const ParameterSpec& spec, const nlohmann::json& golden) {
  if (golden.is_null() || spec.key.status == KeyStatus::kIgnored ||
      (spec.key.status == KeyStatus::kRefused && spec.key.accepted_value.empty())) {
    return true;
  }
  if (spec.key.status == KeyStatus::kRefused) {
    return golden.dump() == spec.key.accepted_value;
  }
  const nlohmann::json ours = json_of(*spec.default_value);
  return spec.key.kind == KeyKind::kNumbers ? ours == nlohmann::json::array({golden})
                                            : ours == golden;
}

void expect_parameters_of(const std::vector<TypeSpec>& types, const std::string& golden_key) {
  const nlohmann::json golden =
      nlohmann::json::parse(text_of_file("tests/golden/ds_config.json")).at(golden_key);
  for (const auto& [type_name, parameters] : golden.items()) {
    const TypeSpec* const type = find_type(types, type_name, false);
    ASSERT_NE(type, nullptr) << type_name;
    for (const auto& [name, value] : parameters.items()) {
      const auto found = std::find_if(
          type->parameters.begin(),
          type->parameters.end(),
          [&, wanted = name](const ParameterSpec& spec) { return spec.key.path == wanted; });
      ASSERT_NE(found, type->parameters.end()) << type_name << " " << name;
      EXPECT_TRUE(agrees(*found, value)) << type_name << " " << name << " " << value;
    }
  }
  EXPECT_GE(golden.size(), 7U);
}

TEST(TypeTable, HasTheParametersAndDefaultsOfTheRealOptimizers) {
  expect_parameters_of(optimizer_types(), "optimizers");
}

TEST(TypeTable, HasTheParametersAndDefaultsOfTheRealSchedules) {
  expect_parameters_of(schedule_types(), "schedules");
}

TEST(TypeTable, NamesAreFoundInAnyCaseWhereAsked) {
  EXPECT_NE(find_type(optimizer_types(), "ADAM", true), nullptr);
  EXPECT_EQ(find_type(schedule_types(), "warmuplr", false), nullptr);
}

}  // namespace
}  // namespace lockstep::ds_config
