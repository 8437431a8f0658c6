// SPDX-License-Identifier: Apache-2.0
// comms_logger and log_summary; and, by what they see, what ZeRO++'s keys change.
#include <map>
#include <regex>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/engine/engine.h"
#include "lockstep/engine/test_engine.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

std::string logging_config(const std::string& zero, const std::string& more = "") {
  return R"({"train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "zero_optimization": )" +
         zero + R"(, "comms_logger": {"enabled": true)" + more + "}}";
}

/// log_summary() of rank 0, after three updates.
std::string summary_of(int world, const std::string& config, bool show_straggler = false) {
  std::string summary;
  on_engines(world, config, [&](TestEngine& engine, EngineNet&) {
    for (int step = 0; step < 3; ++step) {
      // With a gradient of the input, of which backward needs the first layer's weight again.
      const at::Tensor x = engine_batch(step).requires_grad_();
      engine.backward(engine(x).square().mean());
      engine.step();
    }
    const std::string own = engine.log_summary(show_straggler);
    if (engine.accelerator().is_main_process()) {
      summary = own;
    }
  });
  return summary;
}

TEST(CommsLogger, SumsUpTheTrafficOfAnEngine) {
  const std::string summary = summary_of(2, logging_config(R"({"stage": 1})"));
  EXPECT_THAT(summary, HasSubstr("Comm. Op"));
  EXPECT_THAT(summary, HasSubstr("\nreduce_scatter\n"));
  EXPECT_THAT(summary, HasSubstr("\nall_gather\n"));
  EXPECT_THAT(summary, Not(HasSubstr("Straggler")));
  EXPECT_THAT(summary_of(2, logging_config(R"({"stage": 1})"), true), HasSubstr("Straggler(ms)"));
}

TEST(CommsLogger, KeepsTheOperationsThatAreNamed) {
  const std::string summary = summary_of(
      2, logging_config(R"({"stage": 1})", R"(, "prof_all": false, "prof_ops": "all_gather")"));
  EXPECT_THAT(summary, HasSubstr("\nall_gather\n"));
  EXPECT_THAT(summary, Not(HasSubstr("reduce_scatter")));
}

TEST(CommsLogger, DebugTellsDtypesAndShapesApart) {
  EXPECT_THAT(
      summary_of(2, logging_config(R"({"stage": 1})", R"(, "debug": true)")),
      HasSubstr("\nreduce_scatter(avg) of float[256]\n"));
}

TEST(CommsLogger, OneRankSendsNothingAndThereIsNoSummaryByDefault) {
  EXPECT_THAT(summary_of(1, logging_config(R"({"stage": 1})")), HasSubstr("no operation"));
  on_engines(1, simple_config(1), [&](TestEngine& engine, EngineNet&) {
    EXPECT_THAT(
        [&] { engine.log_summary(); },
        ThrowsMessage<ConfigError>(HasSubstr("set comms_logger.enabled")));
  });
}

/// Backward has to bring again what forward has used.
std::string stage3(const std::string& more) {
  return logging_config(
      R"({"stage": 3, "stage3_param_persistence_threshold": 0, "stage3_max_live_parameters": 1,
          "reduce_bucket_size": 32)" +
          more + "}",
      R"(, "debug": true)");
}

TEST(ZeroPlusPlus, EachKeyOfTheFileChangesTheTraffic) {
  const std::string plain = summary_of(4, stage3(""));
  EXPECT_THAT(plain, HasSubstr("all_gather of float["));
  EXPECT_THAT(plain, Not(HasSubstr("all_gather of byte[1, "))) << "rows of blocks";

  const std::string weights = summary_of(4, stage3(R"(, "zero_quantized_weights": true)"));
  EXPECT_THAT(weights, HasSubstr("all_gather of byte[1, ")) << weights;
  EXPECT_THAT(weights, HasSubstr("reduce_scatter(")) << weights;

  const std::string gradients = summary_of(4, stage3(R"(, "zero_quantized_gradients": true)"));
  EXPECT_THAT(gradients, HasSubstr("all_to_all of byte[")) << gradients;

  // A second copy among two of the four: all-gathers of two ranks.
  const auto gathers_of_two = [](const std::string& summary) {
    const size_t start = summary.find("all_gather");
    return start != std::string::npos &&  // Size and unit, ranks, count.
           std::regex_search(summary.substr(start), std::regex("[0-9] [KM]?B +2 +[0-9]+ "));
  };
  const std::string partition = summary_of(4, stage3(R"(, "zero_hpz_partition_size": 2)"));
  EXPECT_TRUE(gathers_of_two(partition)) << partition;
  EXPECT_FALSE(gathers_of_two(plain)) << plain;
}

}  // namespace
}  // namespace lockstep
