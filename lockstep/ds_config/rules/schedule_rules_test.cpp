// SPDX-License-Identifier: Apache-2.0
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/ds_config/parameters/group_rates.h"
#include "lockstep/ds_config/test_reading.h"

namespace lockstep::ds_config {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string both(const std::string& optimizer_keys, const std::string& scheduler_keys) {
  return optimizer_keys + ",\n" + scheduler_keys;
}

TEST(ScheduleRules, OneRateForAllGroupsIsANoteIfTheOptimizerScalesRates) {
  const std::string mup = optimizer("MuAdamW", R"("lr": 0.5)") + ", ";
  const std::string what = "sets one rate for all parameter groups";
  EXPECT_THAT(
      notes_of(mup + scheduler("WarmupLR", R"("warmup_max_lr": 0.5)")),
      HasSubstr("WarmupLR " + what + " and overwrites the rates that MuAdamW scales"));
  EXPECT_THAT(
      notes_of(
          mup + scheduler("WarmupDecayLR", R"("total_num_steps": 5000, "warmup_max_lr": 0.5)")),
      HasSubstr("WarmupDecayLR " + what));
  EXPECT_THAT(
      notes_of(mup + scheduler("WarmupCosineLR", R"("total_num_steps": 5000)")),
      Not(HasSubstr(what)));
  EXPECT_THAT(
      notes_of(mup + scheduler("WarmupLR", R"("warmup_min_lr": 0.1)")), Not(HasSubstr(what)));
  EXPECT_THAT(notes_of(mup + scheduler("WarmupLR")), Not(HasSubstr(what)));
  EXPECT_THAT(notes_of(mup + scheduler("StepLR", R"("step_size": 5)")), Not(HasSubstr(what)));
  EXPECT_THAT(
      notes_of(mup + scheduler("WarmupLR", R"("warmup_max_lr": [0.5, 0.1])")),
      Not(HasSubstr(what)));
  EXPECT_THAT(
      errors_of(optimizer("MuSGD") + ", " + scheduler("WarmupLR", R"("warmup_max_lr": "auto")")),
      HasSubstr("optimizer.params.lr is missing"));
}

const std::string kOneCycle = scheduler("OneCycle", R"("cycle_min_lr": 0.1, "cycle_max_lr": 1)");
const std::string kCyclic = scheduler("CyclicLR", R"("base_lr": 0.1, "max_lr": 1)");

TEST(ScheduleRules, OneCycleKeepsTheMomentumOfAnOptimizerWithoutBetas) {
  for (const std::string type : {"SGD", "Adagrad", "RMSprop", "Muon"}) {
    const std::string keys = both(optimizer(type), kOneCycle);
    EXPECT_EQ(errors_of(keys), "") << type;
    EXPECT_THAT(
        notes_of(keys),
        HasSubstr("[ds.json:3:23] OneCycle cycles betas, which " + type + " does not have"));
  }
  for (const std::string type : {"Adam", "Lamb", "Lion", "NAdam"}) {
    EXPECT_THAT(notes_of(both(optimizer(type), kOneCycle)), Not(HasSubstr("cycles betas"))) << type;
  }
  EXPECT_THAT(
      notes_of(both(
          optimizer("SGD"),
          scheduler(
              "OneCycle", R"("cycle_min_lr": 0.1, "cycle_max_lr": 1, "cycle_momentum": false)"))),
      Not(HasSubstr("cycles betas")));
}

TEST(ScheduleRules, TorchsCyclesNeedBetasOrAMomentum) {
  EXPECT_THAT(
      errors_of(both(optimizer("Adagrad"), kCyclic)),
      HasSubstr("[ds.json:3:23] CyclicLR cycles momentum, and Adagrad has neither betas nor"));
  for (const std::string type : {"SGD", "RMSprop", "Adam", "Muon"}) {
    EXPECT_EQ(errors_of(both(optimizer(type), kCyclic)), "") << type;
  }
}

TEST(ScheduleRules, ACapturedUpdateReadsNoMomentumAgain) {
  for (const std::string& cycle : {kOneCycle, kCyclic}) {
    EXPECT_THAT(
        errors_of(both(optimizer("Adam", R"("capturable": true)"), cycle)),
        HasSubstr("[ds.json:2:56] optimizer.params.capturable cannot be combined with"));
  }
  EXPECT_EQ(errors_of(both(optimizer("SGD", R"("capturable": true)"), kOneCycle)), "");
  EXPECT_EQ(errors_of(both(optimizer("Adam", R"("capturable": true)"), scheduler("WarmupLR"))), "");
}

TEST(ScheduleRules, AListHasAsManyValuesAsTheFilesOptimizerHasGroups) {
  const auto list = [](const std::string& values) {
    return scheduler("WarmupLR", R"("warmup_max_lr": )" + values);
  };
  EXPECT_THAT(
      errors_of(both(optimizer("Adam"), list("[0.1, 0.2, 0.3]"))),
      HasSubstr("scheduler.params.warmup_max_lr of WarmupLR has values for 3 parameter groups, "
                "but the file's Adam has one"));
  EXPECT_THAT(
      errors_of(both(optimizer("Muon"), list("[0.1, 0.2, 0.3]"))), HasSubstr("two at most"));
  EXPECT_EQ(errors_of(both(optimizer("Muon"), list("[0.1, 0.2]"))), "");
  EXPECT_EQ(errors_of(both(optimizer("Adam"), list("[0.1]"))), "");
  EXPECT_EQ(errors_of(list("[0.1, 0.2, 0.3]")), "") << "the program brings the optimizer";
}

TEST(GroupRates, AreTheOptimizers) {
  const auto rates = [](const std::string& keys, std::optional<double> lr = std::nullopt) {
    std::vector<double> all;
    for (const GroupRate& group : group_rates(*reading_with(keys).config.optimizer, lr)) {
      all.push_back(group.lr);
    }
    return all;
  };
  using List = std::vector<double>;
  EXPECT_EQ(rates(optimizer("Adam", R"("lr": 0.5)")), List{0.5});
  EXPECT_EQ(rates(optimizer("Adam", R"("lr": 0.5)"), 0.25), List{0.25});
  EXPECT_EQ(rates(optimizer("Muon")), (List{0.02, 3e-4}));
  EXPECT_EQ(rates(optimizer("Muon", R"("lr": 0.5)")), (List{0.5, 0.5}));
  EXPECT_EQ(
      rates(optimizer("Muon", R"("muon_lr": 0.05, "adam_lr": 0.001)"), 0.5), (List{0.05, 0.001}));
  EXPECT_EQ(rates(optimizer("MuAdam", R"("lr": 0.5)")), List{0.5});
}

}  // namespace
}  // namespace lockstep::ds_config
