// SPDX-License-Identifier: Apache-2.0
#include "cli/config/settings_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace lockstep::cli {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

Report report() {
  const auto file = config::parse_document(
      "/c.yaml",
      "num_processes: 4\ngrace_seconds: 0.5\nenv: {A: \"x\\ty\"}\n",
      config::Format::kYaml);
  return settings_report(
      config::resolve(
          {{"num_machines", "--nnodes", "2"}},
          Environment::of({{"ACCELERATE_DEBUG_MODE", "yes"}}),
          file),
      "/c.yaml");
}

TEST(SettingsReport, NamesTheOriginOfEachSetting) {
  const std::string text = report().text;
  EXPECT_THAT(
      text,
      AllOf(
          HasSubstr("configuration: /c.yaml\n\n  SETTING "),
          ContainsRegex("\n  num_processes  +4  +/c.yaml:1:1\n"),
          ContainsRegex("\n  num_machines  +2  +--nnodes\n"),
          ContainsRegex("\n  debug  +yes  +ACCELERATE_DEBUG_MODE\n"),
          ContainsRegex("\n  max_restarts  +0  +default\n"),
          ContainsRegex("\n  hostfile  +-  +not set: this host only\n"),
          ContainsRegex("\n  env: A  +x.x09y  +/c.yaml:3:7\n")));
}

TEST(SettingsReport, IsAnObjectWithAVersion) {
  const nlohmann::json json = report().json;
  EXPECT_EQ(json["version"], 1);
  EXPECT_EQ(json["config_file"], "/c.yaml");
  std::map<std::string, nlohmann::json> settings;
  for (const auto& setting : json["settings"]) {
    settings[setting["name"]] = setting;
  }
  EXPECT_EQ(settings.size() + 1, config::all_settings().size());
  EXPECT_EQ(settings["num_processes"]["value"], 4);
  EXPECT_EQ(settings["num_processes"]["origin"], "/c.yaml:1:1");
  EXPECT_EQ(settings["grace_seconds"]["value"], 0.5);
  EXPECT_EQ(settings["debug"]["value"], true);
  EXPECT_EQ(settings["hostfile"]["value"], nullptr);
  EXPECT_EQ(settings["hostfile"]["origin"], nullptr);
  EXPECT_EQ(settings["mixed_precision"]["variables"][1], "ACCELERATE_MIXED_PRECISION");
  ASSERT_EQ(json["env"].size(), 1U);
  EXPECT_EQ(json["env"][0]["value"], "x\ty");
}

TEST(SettingsReport, WorksWithoutAFile) {
  const Report without =
      settings_report(config::resolve({}, Environment::of({}), std::nullopt), std::nullopt);
  EXPECT_THAT(without.text, HasSubstr("configuration: no file\n"));
  EXPECT_EQ(without.json["config_file"], nullptr);
  EXPECT_THAT(without.text, Not(HasSubstr("env: ")));
}

}  // namespace
}  // namespace lockstep::cli
