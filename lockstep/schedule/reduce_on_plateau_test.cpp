// SPDX-License-Identifier: Apache-2.0
#include "lockstep/schedule/reduce_on_plateau.h"

#include <fstream>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"

namespace lockstep::schedule {
namespace {

constexpr auto kMax = PlateauMode::kMax;
constexpr auto kAbsolute = PlateauThreshold::kAbsolute;

/// What tests/golden/make_schedules.py makes, by the same names.
std::map<std::string, ReduceOnPlateauOptions> cases() {
  return {
      {"default", {.patience = 2}},
      {"cooldown", {.factor = 0.5, .patience = 1, .threshold = 0.01, .cooldown = 2}},
      {"abs", {.factor = 0.5, .patience = 1, .threshold = 0.05, .threshold_mode = kAbsolute}},
      {"max", {.mode = kMax, .factor = 0.5, .patience = 1, .min_lr = {0.05}}},
      {"max_abs",
       {.mode = kMax,
        .factor = 0.2,
        .patience = 0,
        .threshold = 0.01,
        .threshold_mode = kAbsolute}},
      {"eps", {.mode = kMax, .factor = 0.9, .patience = 0, .eps = 0.02}},
      {"groups", {.mode = kMax, .factor = 0.1, .patience = 1, .min_lr = {0.05, 0.001}}}};
}

nlohmann::json plateau_golden() {
  std::ifstream file(LOCKSTEP_SOURCE_DIR "/tests/golden/schedules.json");
  return nlohmann::json::parse(file).at("plateau");
}

double metric_of(const nlohmann::json& value) {
  if (value.is_number()) {
    return value.get<double>();
  }
  return value == "nan" ? std::numeric_limits<double>::quiet_NaN()
                        : std::numeric_limits<double>::infinity();
}

TEST(ReduceOnPlateau, EqualsTorchsStepByStepAlsoWhenResumedAtEach) {
  const nlohmann::json all = plateau_golden();
  ASSERT_EQ(all.size(), cases().size());
  for (const auto& [name, options] : cases()) {
    ReduceOnPlateau unbroken({0.3, 0.1}, options);
    ReduceOnPlateau resumed({0.3, 0.1}, options);
    const nlohmann::json& entry = all.at(name);
    for (size_t step = 0; step < entry.at("metrics").size(); ++step) {
      const double metric = metric_of(entry.at("metrics")[step]);
      const auto rates = entry.at("lr")[step].get<std::vector<double>>();
      EXPECT_EQ(unbroken.step(metric), rates) << name << " at step " << step;
      ReduceOnPlateau fresh({7, 7}, options);
      fresh.load_state(nlohmann::json::parse(resumed.state().dump()));
      EXPECT_EQ(fresh.step(metric), rates) << name << " resumed at step " << step;
      resumed = fresh;
    }
  }
}

TEST(ReduceOnPlateau, RefusesOptionsWithoutSense) {
  EXPECT_THROW(ReduceOnPlateau({0.1}, {.factor = 1}), ConfigError);
  EXPECT_THROW(ReduceOnPlateau({0.1}, {.factor = -1}), ConfigError);
  EXPECT_THROW(ReduceOnPlateau({0.1}, {.patience = -1}), ConfigError);
  EXPECT_THROW(ReduceOnPlateau({0.1}, {.cooldown = -1}), ConfigError);
  EXPECT_THROW(ReduceOnPlateau({0.1}, {.min_lr = {0, 0}}), ConfigError);
  EXPECT_THROW(ReduceOnPlateau({}, {}), ConfigError);
}

TEST(ReduceOnPlateau, RefusesAForeignStateAndChangesNothing) {
  ReduceOnPlateau plateau({0.1});
  plateau.step(1);
  const nlohmann::json before = plateau.state();
  for (const char* text :
       {"{}",
        "[]",
        R"({"lr":[0.1,0.2],"best":1,"bad_steps":0,"cooldown_left":0})",
        R"({"lr":[0.1],"best":"low","bad_steps":0,"cooldown_left":0})",
        R"({"lr":[0.1],"best":1,"bad_steps":-1,"cooldown_left":0})"}) {
    EXPECT_THROW(plateau.load_state(nlohmann::json::parse(text)), ConfigError) << text;
  }
  EXPECT_EQ(plateau.state(), before);
}

}  // namespace
}  // namespace lockstep::schedule
