// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/comm/tensor/sharded_param.h"
#include "lockstep/engine/engine.h"
#include "lockstep/engine/setup/accelerator_options.h"
#include "lockstep/engine/test_engine.h"
#include "lockstep/optim/flat_optimizer.h"
#include "lockstep/optim/offload/host_update.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(EngineOffload, OffloadedStateIsInItsFolderAndTrainsTheSame) {
  const TestFolder folder;
  const std::string nvme = R"({"device": "nvme", "nvme_path": ")" + folder.path().string() + '"';
  const auto losses = [](int world, const std::string& text, bool in_files) {
    std::vector<double> seen;
    on_engine_ranks(world, text, [&](InitializeOptions options) {
      EngineNet net;
      auto [engine, optimizer, none, scheduler] = initialize(net, std::move(options));
      std::vector<double> own;
      for (int step = 0; step < 5; ++step) {
        const auto loss = engine(engine_batch(step)).square().mean();
        own.push_back(engine.backward(loss).item<double>());
        engine.step();
      }
      const auto& flat = dynamic_cast<optim::FlatOptimizer&>(optimizer.inner());
      EXPECT_EQ(flat.host_update() != nullptr && flat.host_update()->bytes_written() > 0, in_files);
      if (engine.accelerator().is_main_process()) {
        seen = own;
      }
    });
    return seen;
  };
  for (const int world : {1, 2}) {
    for (const int stage : {1, 2, 3}) {
      SCOPED_TRACE(stage);
      const std::vector<double> plain = losses(world, zero_config(stage, ""), false);
      EXPECT_EQ(
          losses(world, zero_config(stage, R"(, "offload_optimizer": {"device": "cpu"})"), false),
          plain);
      EXPECT_EQ(
          losses(world, zero_config(stage, ", \"offload_optimizer\": " + nvme + "}"), true), plain);
    }
    EXPECT_EQ(
        losses(
            world,
            zero_config(
                3,
                ", \"offload_optimizer\": " + nvme + ", \"buffer_count\": 3, \"pipeline_read\": " +
                    "false}, \"offload_param\": " + nvme + ", \"max_in_cpu\": 0}"),
            true),
        losses(world, zero_config(3, ""), false));
  }
}

TEST(EngineOffload, InferenceNeedsNoOptimizer) {
  const TestFolder folder;
  const TestFolder saved;
  const at::Tensor expected = EngineNet()->forward(engine_batch(0)).detach();
  const std::string nvme = R"("nvme", "nvme_path": ")" + folder.path().string() + "\"";
  for (const int world : {1, 2}) {
    for (const std::string& device : {std::string("\"cpu\""), nvme}) {
      const std::string text =
          R"({"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 3,
          "stage3_param_persistence_threshold": 0, "offload_param": {"device": )" +
          device + "}}}";
      on_engine_ranks(world, text, [&](const InitializeOptions& options) {
        EngineNet net;
        auto made = initialize(net, options);
        EXPECT_TRUE(comm::is_sharded_param(net->fc->weight)) << "each rank has its part alone";
        EXPECT_FALSE(net->fc->weight.requires_grad());
        EXPECT_TRUE(at::equal(std::get<0>(made)(engine_batch(0)), expected));
        EXPECT_THAT(
            [&] { std::get<0>(made).step(); },
            ThrowsMessage<ConfigError>(HasSubstr("the engine has no optimizer")));
        std::get<0>(made).save_checkpoint(saved.path(), "one");
        EngineNet other;
        {
          const at::NoGradGuard no_grad;
          other->fc->weight.zero_();
        }
        auto loaded = initialize(other, options);
        std::get<0>(loaded).load_checkpoint(saved.path(), "one");
        EXPECT_TRUE(at::equal(std::get<0>(loaded)(engine_batch(0)), expected));
      });
    }
  }
}

TEST(EngineOffload, AMissingFolderIsNamed) {
  on_engine_ranks(
      1,
      zero_config(1, R"(, "offload_optimizer": {"device": "nvme", "nvme_path": "/no/such"})"),
      [](InitializeOptions options) {
        EngineNet net;
        EXPECT_THAT(
            [&] { initialize(net, std::move(options)); },
            ThrowsMessage<ConfigError>(HasSubstr("/no/such")));
      });
}

}  // namespace
}  // namespace lockstep
