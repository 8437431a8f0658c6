// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/diagnostics/step_recorder.h"

#include <chrono>
#include <filesystem>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/accelerator/test_loops.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/optim/rules/sgd.h"

namespace lockstep::internal {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::vector<json> records_of_rank(const TestFolder& folder, int rank) {
  std::istringstream text(contents(folder / "logs" / ("steps_" + std::to_string(rank) + ".jsonl")));
  std::vector<json> records;
  for (std::string line; std::getline(text, line);) {
    records.push_back(json::parse(line));
  }
  return records;
}

/// Returns the sum of `key` over the lines that have `kind`.
double total(const std::vector<json>& records, const std::string& kind, const std::string& key) {
  double sum = 0;
  for (const json& record : records) {
    sum += record.contains(kind) ? record.value(key, 0.0) : 0;
  }
  return sum;
}

AcceleratorOptions recorded(const TestFolder& folder) {
  return {.project_dir = folder.path(), .record_steps = true};
}

/// Trains for one epoch of `batches` batches of two rows a rank.
void train_epoch(Accelerator& accelerator, int64_t batches, auto&& in_body) {
  auto net = one_by_one();
  auto [model, optimizer, loader] = accelerator.prepare(
      net,
      optim::SGD(net->parameters(), {.lr = 0.25}),
      numbers(2 * batches * accelerator.num_processes(), {.batch_size = 2}));
  for (auto& batch : loader) {
    accelerator.backward(model->forward(batch.data).square().mean());
    optimizer.step();
    optimizer.zero_grad();
    in_body(optimizer.steps());
  }
}

TEST(StepRecorder, HasEveryStepOfEveryRankAndItsSamples) {
  const TestFolder folder;
  accelerated_ranks(3, recorded(folder), [](Accelerator& accelerator) {
    accelerator.init_trackers({{"lr", 0.25}});
    train_epoch(accelerator, 5, [](int64_t) {});
    accelerator.end_training();
  });
  for (int rank = 0; rank < 3; ++rank) {
    const auto records = records_of_rank(folder, rank);
    EXPECT_EQ(records.front().at("rank"), rank);
    EXPECT_EQ(records.front().at("world"), 3);
    EXPECT_EQ(records.front().at("environment").at("transport"), "thread");
    EXPECT_EQ(records[1].at("config").at("lr"), 0.25);
    EXPECT_EQ(records.back().at("status"), "finished");
    EXPECT_EQ(total(records, "step", "steps"), 5);
    EXPECT_EQ(total(records, "step", "samples"), 10);
    EXPECT_GT(total(records, "step", "communication"), 0);
    EXPECT_GT(total(records, "step", "backward"), 0);
  }
}

TEST(StepRecorder, SplitsAllTimeOfAStepIntoItsParts) {
  const TestFolder folder;
  {
    Accelerator accelerator(recorded(folder), WorldSpec{}, Group());
    train_epoch(accelerator, 3, [](int64_t) { std::this_thread::sleep_for(20ms); });
  }
  for (const json& record : records_of_rank(folder, 0)) {
    if (record.contains("step")) {
      double parts = 0;
      for (const char* part :
           {"data", "forward", "backward", "communication", "optimizer", "checkpoint", "other"}) {
        parts += record.value(part, 0.0);
      }
      EXPECT_NEAR(parts, record.at("seconds").get<double>(), 1e-8);
      EXPECT_GT(record.at("forward").get<double>(), 0.02);
      EXPECT_EQ(record.at("lr"), 0.25);
      EXPECT_TRUE(record.at("loss").is_number());
    }
  }
}

TEST(StepRecorder, ARankThatWaitsForASlowOneShowsItAsCommunication) {
  const TestFolder folder;
  accelerated_ranks(2, recorded(folder), [](Accelerator& accelerator) {
    train_epoch(accelerator, 4, [&](int64_t) {
      if (accelerator.process_index() == 1) {
        std::this_thread::sleep_for(30ms);
      }
    });
  });
  // Rank 0 waits in all steps but the first.
  EXPECT_GT(total(records_of_rank(folder, 0), "step", "communication"), 0.06);
  EXPECT_GT(total(records_of_rank(folder, 1), "step", "forward"), 0.12);
}

TEST(StepRecorder, AnEvaluationAndASaveBetweenEpochsBelongToNoStep) {
  const TestFolder folder;
  {
    Accelerator accelerator(recorded(folder), WorldSpec{}, Group());
    auto test = accelerator.prepare(numbers(4, {.batch_size = 2}));
    train_epoch(accelerator, 2, [](int64_t) {});
    for ([[maybe_unused]] auto& batch : test) {
      std::this_thread::sleep_for(20ms);
    }
    accelerator.save_state();
    accelerator.end_training();
  }
  const auto records = records_of_rank(folder, 0);
  EXPECT_EQ(total(records, "step", "checkpoint"), 0);
  EXPECT_GT(total(records, "after_step", "checkpoint"), 0);
  EXPECT_GT(total(records, "after_step", "other"), 0.04);
  EXPECT_EQ(total(records, "step", "samples"), 4);
}

TEST(StepRecorder, AnEvaluationWithinAStepIsOther) {
  const TestFolder folder;
  {
    Accelerator accelerator(recorded(folder), WorldSpec{}, Group());
    auto test = accelerator.prepare(numbers(4, {.batch_size = 2}));
    train_epoch(accelerator, 2, [&](int64_t step) {
      for ([[maybe_unused]] auto& batch : test) {
        std::this_thread::sleep_for(step == 1 ? 20ms : 0ms);
      }
    });
  }
  const auto records = records_of_rank(folder, 0);
  EXPECT_GT(total(records, "step", "other"), 0.04);
  EXPECT_EQ(total(records, "step", "samples"), 4);
}

TEST(StepRecorder, ASaveWithinTheLoopIsCheckpointTimeOfItsStep) {
  const TestFolder folder;
  {
    AcceleratorOptions options = recorded(folder);
    options.project_config.checkpointing_steps = 2;
    Accelerator accelerator(options, WorldSpec{}, Group());
    train_epoch(accelerator, 3, [](int64_t) {});
  }
  EXPECT_GT(total(records_of_rank(folder, 0), "step", "checkpoint"), 0);
}

TEST(StepRecorder, CountsUpdatesOfAccumulatedBatches) {
  const TestFolder folder;
  {
    AcceleratorOptions options = recorded(folder);
    options.gradient_accumulation_steps = 2;
    Accelerator accelerator(options, WorldSpec{}, Group());
    auto net = one_by_one();
    auto [model, optimizer, loader] = accelerator.prepare(
        net, optim::SGD(net->parameters(), {.lr = 0}), numbers(8, {.batch_size = 2}));
    for (auto& batch : loader) {
      auto micro_step = accelerator.accumulate(model);
      accelerator.backward(model->forward(batch.data).mean());
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  const auto records = records_of_rank(folder, 0);
  EXPECT_EQ(total(records, "step", "steps"), 2);
  EXPECT_EQ(total(records, "step", "samples"), 8);
  // The mean of the four losses 0.5 x + 0.25, of x = 0.5, 2.5, 4.5, 6.5.
  EXPECT_NEAR(records.back().at("loss").get<double>(), 2.0, 1e-6);
}

TEST(StepRecorder, WorksWithoutALoader) {
  const TestFolder folder;
  {
    Accelerator accelerator(recorded(folder), WorldSpec{}, Group());
    auto net = two_by_two();
    auto [model, optimizer] = accelerator.prepare(net, optim::SGD(net->parameters(), {.lr = 0.1}));
    for (int step = 0; step < 3; ++step) {
      accelerator.backward(loss_of(model, rows_of(accelerator)));
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  EXPECT_EQ(total(records_of_rank(folder, 0), "step", "steps"), 3);
}

TEST(StepRecorder, IsOffUnlessRequested) {
  const TestFolder folder;
  { const Accelerator accelerator({.project_dir = folder.path()}, WorldSpec{}, Group()); }
  EXPECT_FALSE(std::filesystem::exists(folder / "logs"));
}

TEST(StepRecorder, WithoutAFolderIsRefused) {
  EXPECT_THAT(
      [] { Accelerator({.record_steps = true}, WorldSpec{}, Group()); },
      ThrowsMessage<ConfigError>(HasSubstr("record_steps needs a folder")));
}

}  // namespace
}  // namespace lockstep::internal
