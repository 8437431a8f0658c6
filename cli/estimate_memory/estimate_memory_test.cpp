// SPDX-License-Identifier: Apache-2.0
#include "cli/estimate_memory/estimate_memory.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/estimate_memory/estimate_memory_model.h"
#include "cli/estimate_memory/estimate_memory_report.h"
#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/storage/test_files.h"

namespace lockstep::cli {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
using Json = nlohmann::json;
namespace fs = std::filesystem;

const fs::path kGolden = LOCKSTEP_SOURCE_DIR "/tests/golden/estimate_memory";
constexpr double kAdamNumbers = 2;

Json golden(const std::string& name) {
  std::ifstream file(kGolden / name);
  return Json::parse(file);
}

TEST(EstimateMemoryGolden, AModelsDtypesAreThoseOfAccelerate) {
  const Json models = golden("accelerate.json")["models"];
  ASSERT_EQ(models.size(), 4U);
  for (const auto& [name, expected] : models.items()) {
    const ModelSize size = size_of_model(tensors_of_model(kGolden / (name + ".safetensors"), 0));
    EXPECT_EQ(size.parameters, expected["parameters"]) << name;
    EXPECT_EQ(size.layers->largest_own_parameters, expected["largest_own_parameters"]) << name;
    EXPECT_THAT(
        size.layers->largest,
        testing::UnorderedElementsAreArray(expected["largest"].get<std::vector<std::string>>()))
        << name;
    for (const auto& [dtype, row] : expected["rows"].items()) {
      const DtypeEstimate estimate =
          estimate_dtype(dtype, size.float32_bytes, size.layers->largest_bytes, kAdamNumbers);
      EXPECT_EQ(estimate.largest_layer, row["largest_layer"]) << name << " " << dtype;
      EXPECT_EQ(estimate.total, row["total"]) << name << " " << dtype;
      ASSERT_EQ(estimate.training.has_value(), row["training"]["model"] != -1) << dtype;
      if (const auto& training = estimate.training) {
        EXPECT_EQ(training->model, row["training"]["model"]) << name << " " << dtype;
        EXPECT_EQ(training->gradients, row["training"]["gradients"]) << name << " " << dtype;
        EXPECT_EQ(training->optimizer, row["training"]["optimizer"]) << name << " " << dtype;
        EXPECT_EQ(training->step, row["training"]["step"]) << name << " " << dtype;
      }
    }
  }
}

TEST(EstimateMemoryGolden, ZeroIsThatOfDeepSpeed) {
  const auto expect = [](const ZeroEstimate& got, const Json& host_and_device, const Json& of) {
    EXPECT_EQ(got.host, host_and_device[0]) << of;
    EXPECT_EQ(got.device, host_and_device[1]) << of;
  };
  const Json cases = golden("deepspeed.json")["cases"];
  ASSERT_EQ(cases.size(), 80U);
  for (const Json& one : cases) {
    const DeepSpeedSetup setup{
        .parameters = one["parameters"],
        .largest_layer_parameters = one["largest_layer"],
        .ranks_per_host = one["ranks_per_host"],
        .hosts = one["hosts"]};
    expect(deepspeed_zero2(setup, false), one["zero2"][0], one);
    expect(deepspeed_zero2(setup, true), one["zero2"][1], one);
    size_t next = 0;
    for (const Offload offload :
         {Offload::kNone, Offload::kOptimizer, Offload::kOptimizerAndParameters}) {
      for (const bool zero_init : {true, false}) {
        expect(deepspeed_zero3(setup, offload, zero_init), one["zero3"][next++], one);
      }
    }
  }
}

/// The example of the ZeRO paper: 7.5 B parameters, 64 ranks, Adam in mixed precision.
TEST(EstimateZero, HasTheNumbersOfTheZeroPaper) {
  const TrainingState state{
      .parameters = 7'500'000'000, .optimizer_numbers = 15'000'000'000, .mixed_precision = true};
  const auto gigabytes = [&](int stage) {
    return static_cast<double>(estimate_zero(state, stage, Offload::kNone, 64).device) / 1e9;
  };
  EXPECT_NEAR(gigabytes(0), 120, 0.05);
  EXPECT_NEAR(gigabytes(1), 31.4, 0.05);
  EXPECT_NEAR(gigabytes(2), 16.6, 0.05);
  EXPECT_NEAR(gigabytes(3), 1.9, 0.05);
}

TEST(EstimateZero, Float32KeepsNoMasterCopy) {
  const TrainingState state{.parameters = 100, .optimizer_numbers = 200, .mixed_precision = false};
  EXPECT_EQ(estimate_zero(state, 0, Offload::kNone, 2).device, 1600);
  EXPECT_EQ(estimate_zero(state, 1, Offload::kNone, 2).device, 1200);
  EXPECT_EQ(estimate_zero(state, 2, Offload::kNone, 2).device, 1000);
  EXPECT_EQ(estimate_zero(state, 3, Offload::kNone, 2).device, 800);
}

TEST(EstimateZero, OffloadingMovesSharesToTheHost) {
  const TrainingState state{.parameters = 100, .optimizer_numbers = 200, .mixed_precision = true};
  const ZeroEstimate one = estimate_zero(state, 1, Offload::kOptimizer, 4);
  EXPECT_EQ(one.device, 400);
  EXPECT_EQ(one.host, 400);
  const ZeroEstimate two = estimate_zero(state, 2, Offload::kOptimizer, 4);
  EXPECT_EQ(two.device, 200);
  EXPECT_EQ(two.host, 400);
  const ZeroEstimate three = estimate_zero(state, 3, Offload::kOptimizerAndParameters, 4);
  EXPECT_EQ(three.device, 0);
  EXPECT_EQ(three.host, 450);
}

/// ZeroMemory and ZeroOffload of accelerator_test, and Device.* of accelerator_device_test, measure
/// the same in real trainings.
TEST(EstimateLockstep, IsFloat32OnceAndOffloadingMovesItAsItIs) {
  for (const bool mixed : {false, true}) {
    const TrainingState state{
        .parameters = 100, .optimizer_numbers = 200, .mixed_precision = mixed};
    const auto expect = [&](int stage, Offload offload, int64_t device, int64_t host) {
      const ZeroEstimate got = estimate_lockstep(state, stage, offload, 4);
      EXPECT_EQ(got.device, device) << stage;
      EXPECT_EQ(got.host, host) << stage;
    };
    expect(0, Offload::kNone, 1600, 0);
    expect(1, Offload::kNone, 400 + 400 + 200, 0);
    expect(2, Offload::kNone, 400 + 100 + 200, 0);
    expect(3, Offload::kNone, 100 + 100 + 200, 0);
    expect(1, Offload::kOptimizer, 400 + 400, 200);
    expect(2, Offload::kOptimizer, 400 + 100, 200);
    expect(3, Offload::kOptimizer, 100 + 100, 200);
    expect(3, Offload::kOptimizerAndParameters, 100, 300);
  }
}

TEST(ModelSizes, AdafactorKeepsARowAndAColumn) {
  using storage::Dtype;
  const ModelSize size = size_of_model(
      {{"a.weight", Dtype::kF32, {30, 20}},
       {"a.bias", Dtype::kF32, {20}},
       {"b.weight", Dtype::kBF16, {2, 3, 5}},
       {"b.running_mean", Dtype::kF32, {7}},
       {"b.num_batches_tracked", Dtype::kI64, {}}});
  EXPECT_EQ(size.layers->adafactor_numbers, 50 + 20 + 2 * (3 + 5));
  EXPECT_EQ(size.parameters, 650);
  EXPECT_EQ(size.buffers, 8);
}

TEST(TensorsOfModel, ReadsShardsAndCheckpointsByTheirHeaders) {
  const TestFolder folder;
  const auto file = [](const std::string& name, int64_t elements) {
    return storage::TestFile{{storage::output_tensor(
        name, storage::Dtype::kU8, {elements}, std::string(static_cast<size_t>(elements), 'x'))}};
  };
  storage::commit_checkpoint(
      folder / "checkpoint_1",
      {{"step", 1}},
      {{"model.safetensors", file("a.weight", 4)}, {"model_1.safetensors", file("b.weight", 5)}});
  EXPECT_EQ(tensors_of_model(folder / "checkpoint_1", 0).at(0).name, "a.weight");
  EXPECT_EQ(tensors_of_model(folder / "checkpoint_1", 1).at(0).shape.at(0), 5);
  EXPECT_THAT(
      [&] { tensors_of_model(folder / "checkpoint_1", 2); },
      ThrowsMessage<ConfigError>(HasSubstr("has no model 2")));
  EXPECT_THAT(
      [&] { tensors_of_model(folder.path(), 0); },
      ThrowsMessage<ConfigError>(HasSubstr("try the newest")));
  EXPECT_THAT(
      [&] { tensors_of_model(folder / "absent", 0); },
      ThrowsMessage<ConfigError>(HasSubstr("does not exist")));

  const std::vector<ModelTensor> shards =
      tensors_of_model(LOCKSTEP_SOURCE_DIR "/tests/golden/model_shards", 0);
  EXPECT_GT(shards.size(), 1U);
  EXPECT_THAT(
      [] { tensors_of_model(LOCKSTEP_SOURCE_DIR "/tests/golden/model_shards", 1); },
      ThrowsMessage<ConfigError>(HasSubstr("use --model with checkpoints only")));
}

TEST(EstimateReport, DividesTheModelByTheMeshAndShardsTheRest) {
  EstimateRequest request;
  request.size = size_of_parameters(800);
  request.dtypes = {"float32"};
  request.optimizer = "adamw";
  request.optimizer_numbers = 1600;
  request.mixed_precision = "bf16";
  request.ranks = {8};
  request.mesh = {.pp = 2, .tp = 2};
  const Report report = estimate_report(request);
  EXPECT_THAT(report.text, HasSubstr("ZeRO with 8 ranks on 1 host, mesh pp=2,tp=2"));
  const auto bytes = [&](int stage) -> int64_t {
    for (const auto& row : report.json["zero"]) {
      if (row["stage"] == stage && !row["offload_optimizer"]) {
        EXPECT_EQ(row["replicas"], 2);
        EXPECT_TRUE(row["deepspeed"].is_null());
        return row["lockstep"]["device_bytes_per_rank"];
      }
    }
    return 0;
  };
  // 200 parameters with as many gradients and twice as many numbers of state, in float32.
  EXPECT_EQ(bytes(0), 4 * (200 + 200 + 400));
  EXPECT_EQ(bytes(3), bytes(0) / 2);
  request.ranks = {6};
  EXPECT_THAT([&] { estimate_report(request); }, ThrowsMessage<ConfigError>(HasSubstr("6")));
}

TEST(ParseCount, KnowsUnitsAndRefusesTheRest) {
  EXPECT_EQ(parse_count("x", "7b"), 7'000'000'000);
  EXPECT_EQ(parse_count("x", "350M"), 350'000'000);
  EXPECT_EQ(parse_count("x", "1.3e9"), 1'300'000'000);
  EXPECT_EQ(parse_count("x", "0.1K"), 100);
  EXPECT_EQ(parse_count("x", "1_000"), 1000);
  EXPECT_EQ(parse_count("x", "1.55G"), 1'550'000'000);
  EXPECT_EQ(parse_count("x", "10T"), kMostParameters);
  for (const char* text :
       {"",
        "b",
        "-7b",
        "7bb",
        "7 b",
        "nan",
        "inf",
        "0",
        "1.5",
        "0.0001K",
        "11T",
        "0x10",
        "1e400"}) {
    EXPECT_THAT(
        [&] { parse_count("--parameters", text); },
        ThrowsMessage<ConfigError>(HasSubstr("' for --parameters; expected ")))
        << text;
  }
}

}  // namespace
}  // namespace lockstep::cli
