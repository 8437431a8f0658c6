// SPDX-License-Identifier: Apache-2.0
// checkpoint.use_node_local_storage: four ranks as two hosts of two, whose disks are two folders.
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <torch/nn/modules/linear.h>

#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/engine/engine.h"
#include "lockstep/engine/test_engine.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int kRanks = 4;

std::string node_local_config(
    int stage, const std::string& zero_keys = "", at::ScalarType dtype = at::kFloat) {
  const std::string bf16 = dtype == at::kBFloat16 ? R"("bf16": {"enabled": true}, )" : "";
  return "{" + bf16 +
         R"("train_micro_batch_size_per_gpu": 4, "checkpoint": {"use_node_local_storage": true},
      "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "zero_optimization": {
      "stage3_param_persistence_threshold": 16, "stage": )" +
         std::to_string(stage) + zero_keys + "}}";
}

fs::path disk_of(const TestFolder& folder, int rank) {
  return folder.path() / ("host" + std::to_string(rank / 2));
}

/// Runs `body` on kRanks ranks, with `local_size` ranks on a host.
void on_hosts(
    const std::string& config,
    const std::function<void(InitializeOptions options, int rank)>& body,
    int local_size = 2) {
  on_engine_ranks(
      kRanks,
      config,
      [&](InitializeOptions options) {
        const int rank = options.connected->world.rank;
        body(std::move(options), rank);
      },
      local_size);
}

template <typename Engine>
void train_on_own_batches(Engine& engine, int from, int to) {
  const int rank = engine.accelerator().process_index();
  for (int step = from; step < to; ++step) {
    engine.backward(engine(engine_batch(step + rank)).square().mean());
    engine.step();
  }
}

/// Trains for two updates, saves on each host, and says what two more make of the model.
std::vector<at::Tensor> save_and_go_on(
    const TestFolder& folder, const std::string& config, at::ScalarType dtype = at::kFloat) {
  std::vector<at::Tensor> expected;
  on_hosts(config, [&](InitializeOptions options, int rank) {
    EngineNet net;
    net->to(dtype);
    auto made = initialize(net, std::move(options));
    auto& engine = std::get<0>(made);
    train_on_own_batches(engine, 0, 2);
    engine.save_checkpoint(disk_of(folder, rank), std::nullopt, {.client_state = {{"by", rank}}});
    train_on_own_batches(engine, 2, 4);
    auto values = full_values(engine.accelerator(), net);
    if (rank == 0) {
      expected = std::move(values);
    }
  });
  return expected;
}

TEST(NodeLocal, EachHostResumesFromItsOwnRanksFiles) {
  const auto expect_to_go_on = [](int stage, at::ScalarType dtype) {
    const TestFolder folder;
    const std::string config = node_local_config(stage, "", dtype);
    const auto expected = save_and_go_on(folder, config, dtype);
    for (const int host : {0, 1}) {
      const fs::path saved = disk_of(folder, 2 * host) / "global_step2";
      EXPECT_TRUE(
          fs::exists(saved / ("random_states_" + std::to_string(2 * host) + ".safetensors")));
      EXPECT_FALSE(
          fs::exists(saved / ("random_states_" + std::to_string(2 - 2 * host) + ".safetensors")))
          << "the other host's";
    }
    on_hosts(config, [&](InitializeOptions options, int rank) {
      EngineNet net;
      {
        const at::NoGradGuard no_grad;
        net->fc->weight.zero_();
      }
      net->to(dtype);
      auto made = initialize(net, std::move(options));
      auto& engine = std::get<0>(made);
      const LoadedCheckpoint loaded = engine.load_checkpoint(disk_of(folder, rank));
      EXPECT_EQ(loaded.path, disk_of(folder, rank) / "global_step2");
      EXPECT_EQ(loaded.client_state.at("by"), 0);
      EXPECT_EQ(engine.global_steps(), 2);
      train_on_own_batches(engine, 2, 4);
      const auto values = full_values(engine.accelerator(), net);
      for (size_t i = 0; i < values.size(); ++i) {
        EXPECT_TRUE(at::equal(values[i], expected[i])) << "parameter " << i;
      }
    });
  };
  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE(stage);
    expect_to_go_on(stage, at::kFloat);
  }
  for (const int stage : {1, 2, 3}) {
    SCOPED_TRACE(stage);
    expect_to_go_on(stage, at::kBFloat16);
  }
}

void expect_load_refused(
    const TestFolder& folder,
    const std::string& config,
    const ::testing::Matcher<const std::string&>& what,
    int local_size = 2,
    const std::function<fs::path(int rank)>& disk = nullptr) {
  on_hosts(
      config,
      [&](InitializeOptions options, int rank) {
        EngineNet net;
        auto made = initialize(net, std::move(options));
        const fs::path dir = disk ? disk(rank) : disk_of(folder, rank);
        EXPECT_THAT(
            [&] { std::get<0>(made).load_checkpoint(dir); }, ThrowsMessage<CheckpointError>(what));
      },
      local_size);
}

TEST(NodeLocal, APartThatIsMissingIsNamedWithItsHost) {
  const TestFolder folder;
  const std::string config = node_local_config(2);
  save_and_go_on(folder, config);
  // The hosts' disks have changed places.
  expect_load_refused(
      folder,
      config,
      AllOf(HasSubstr("on host "), HasSubstr("optimizer_part_of_rank_")),
      2,
      [&](int rank) { return disk_of(folder, kRanks - 1 - rank); });
  // All ranks on one host, which has the parts of two.
  expect_load_refused(
      folder, config, HasSubstr("optimizer_part_of_rank_2.safetensors"), 4, [&](int /*rank*/) {
        return disk_of(folder, 0);
      });
  // Divided otherwise.
  expect_load_refused(
      folder,
      node_local_config(2, R"(, "reduce_bucket_size": 40)"),
      HasSubstr("sharded differently"));
  expect_load_refused(
      folder, node_local_config(0), HasSubstr("one host's part of a state that ZeRO sharded"));
  fs::remove_all(disk_of(folder, 2) / "global_step2");
  expect_load_refused(
      folder, config, AllOf(HasSubstr("rank 2: host "), HasSubstr("has no global_step2")));
}

std::string adafactor_config(const std::string& zero_keys = "") {
  return R"({"train_micro_batch_size_per_gpu": 4, "checkpoint": {"use_node_local_storage": true},
      "optimizer": {"type": "Adafactor", "params": {"lr": 0.01}}, "zero_optimization": {"stage": 1)" +
         zero_keys + "}}";
}

/// A matrix of 240 elements, of which rank 3 has none where the bias is in its bucket, and some
/// where it does not.
TEST(NodeLocal, RowAndColumnStateIsRefusedIfAMatrixIsShardedDifferently) {
  const TestFolder folder;
  const auto with_engine = [&](const std::string& config, const auto& body) {
    on_hosts(config, [&](InitializeOptions options, int rank) {
      torch::nn::Linear net(6, 40);
      {
        const at::NoGradGuard no_grad;
        net->weight.fill_(0.5);
        net->bias.zero_();
      }
      auto made = initialize(net, std::move(options));
      body(std::get<0>(made), net, disk_of(folder, rank));
    });
  };
  at::Tensor expected;
  with_engine(adafactor_config(), [&](auto& engine, const auto& net, const fs::path& disk) {
    train_on_own_batches(engine, 0, 2);
    engine.save_checkpoint(disk);
    train_on_own_batches(engine, 2, 4);
    if (engine.accelerator().is_main_process()) {
      expected = net->weight.detach().clone();
    }
  });
  with_engine(adafactor_config(), [&](auto& engine, const auto& net, const fs::path& disk) {
    engine.load_checkpoint(disk);
    train_on_own_batches(engine, 2, 4);
    EXPECT_TRUE(at::equal(net->weight.detach(), expected));
  });
  with_engine(
      adafactor_config(R"(, "reduce_bucket_size": 40)"),
      [&](auto& engine, const auto& /*net*/, const fs::path& disk) {
        EXPECT_THAT(
            [&] { engine.load_checkpoint(disk); },
            ThrowsMessage<CheckpointError>(
                AllOf(HasSubstr("was sharded differently"), HasSubstr("optimizer_part_of_rank_"))));
      });
}

TEST(NodeLocal, AHostWithoutLatestTakesTheOthersName) {
  const TestFolder folder;
  const std::string config = node_local_config(1);
  save_and_go_on(folder, config);
  fs::remove(disk_of(folder, 2) / "latest");
  on_hosts(config, [&](InitializeOptions options, int rank) {
    EngineNet net;
    auto made = initialize(net, std::move(options));
    std::get<0>(made).load_checkpoint(disk_of(folder, rank));
    EXPECT_EQ(std::get<0>(made).global_steps(), 2);
  });
}

TEST(NodeLocal, NoHostKeepsACheckpointThatAnotherCouldNotWrite) {
  const TestFolder folder;
  fs::create_directories(disk_of(folder, 0));
  std::ofstream(disk_of(folder, 2)) << "no folder";
  on_hosts(node_local_config(2), [&](InitializeOptions options, int rank) {
    EngineNet net;
    auto made = initialize(net, std::move(options));
    train_on_own_batches(std::get<0>(made), 0, 1);
    EXPECT_THAT(
        [&] { std::get<0>(made).save_checkpoint(disk_of(folder, rank)); },
        ThrowsMessage<CheckpointError>(HasSubstr("rank 2")));
  });
  EXPECT_TRUE(fs::is_empty(disk_of(folder, 0)));
}

TEST(NodeLocal, NoHostMarksLatestACheckpointThatAnotherCouldNotMark) {
  const TestFolder folder;
  const std::string config = node_local_config(1);
  save_and_go_on(folder, config);
  // A folder in the name's place cannot be replaced by a file.
  fs::remove(disk_of(folder, 2) / "latest");
  fs::create_directories(disk_of(folder, 2) / "latest" / "in the way");
  on_hosts(config, [&](InitializeOptions options, int rank) {
    EngineNet net;
    auto made = initialize(net, std::move(options));
    train_on_own_batches(std::get<0>(made), 0, 3);
    EXPECT_THAT(
        [&] { std::get<0>(made).save_checkpoint(disk_of(folder, rank)); },
        ThrowsMessage<CheckpointError>(
            HasSubstr("is saved, but the file latest was not written: rank 2")));
  });
  std::string named;
  std::ifstream(disk_of(folder, 0) / "latest") >> named;
  EXPECT_EQ(named, "global_step2");
}

TEST(NodeLocal, OnOneHostItIsACheckpointLikeAnyOther) {
  const TestFolder folder;
  on_hosts(
      node_local_config(2),
      [&](InitializeOptions options, int /*rank*/) {
        EngineNet net;
        auto made = initialize(net, std::move(options));
        train_on_own_batches(std::get<0>(made), 0, 1);
        std::get<0>(made).save_checkpoint(folder.path());
      },
      kRanks);
  on_engines(2, simple_config(1, 1), [&](TestEngine& engine, EngineNet&) {
    engine.load_checkpoint(folder.path());
    EXPECT_EQ(engine.global_steps(), 1);
  });
}

}  // namespace
}  // namespace lockstep
