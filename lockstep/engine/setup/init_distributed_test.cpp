// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/setup/init_distributed.h"

#include <cstdlib>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/nn/modules/linear.h>

#include "lockstep/base/error.h"
#include "lockstep/engine/engine.h"
#include "lockstep/engine/test_engine.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// This process alone; several are in tests/e2e.
class InitDistributed : public ::testing::Test {
 protected:
  ~InitDistributed() override {
    destroy_process_group();
    ::unsetenv("DEEPSPEED_TIMEOUT");
  }
};

TEST_F(InitDistributed, ConnectsOnceAndInitializeUsesTheConnection) {
  EXPECT_FALSE(is_distributed_initialized());
  const Connected job = init_distributed();
  EXPECT_EQ(job.world.size, 1);
  EXPECT_EQ(job.group.size(), 1);
  EXPECT_TRUE(is_distributed_initialized());
  init_distributed();
  EngineNet net;
  auto [engine, optimizer, none, scheduler] = initialize(net, {.config_json = simple_config(1)});
  engine.backward(engine(engine_batch(0)).mean());
  engine.step();
  EXPECT_EQ(engine.global_steps(), 1);
  destroy_process_group();
  EXPECT_FALSE(is_distributed_initialized());
  engine.backward(engine(engine_batch(0)).mean());
  engine.step();  // It has the group still.
}

TEST_F(InitDistributed, InitializeConnectsTheRanksIfNecessary) {
  EngineNet net;
  auto made = initialize(net, {.config_json = simple_config(1)});
  EXPECT_TRUE(is_distributed_initialized());
  EngineNet other;
  auto second = initialize(other, {.config_json = simple_config(1)});
  EXPECT_EQ(std::get<0>(second).accelerator().num_processes(), 1);
}

TEST_F(InitDistributed, TheTimeoutIsTheCallersOrTheEnvironments) {
  EXPECT_EQ(init_distributed().group.timeout(), std::chrono::minutes(10));
  destroy_process_group();
  // A group of one has a timeout, too.
  ::setenv("DEEPSPEED_TIMEOUT", "3", 1);
  init_distributed();
  EXPECT_THAT(
      [] { init_distributed({.timeout = std::chrono::seconds(7)}); },
      ThrowsMessage<ConfigError>(HasSubstr("timeout 180 s")));
  init_distributed({.timeout = std::chrono::minutes(3)});
  destroy_process_group();
  ::setenv("DEEPSPEED_TIMEOUT", "soon", 1);
  EXPECT_THROW(init_distributed(), ConfigError);
}

TEST_F(InitDistributed, ASecondCallMayNotWantSomethingElse) {
  init_distributed();
  EXPECT_THAT(
      [] { init_distributed({.rank = 1, .world_size = 2}); },
      ThrowsMessage<ConfigError>(HasSubstr("the ranks are connected already")));
  EXPECT_THROW(init_distributed({.dist_backend = "gloo"}), ConfigError);
  EngineNet net;
  InitializeOptions options{.config_json = simple_config(1)};
  options.accelerator.connect.timeout = std::chrono::seconds(5);
  EXPECT_THAT(
      [&] { initialize(net, options); },
      ThrowsMessage<ConfigError>(HasSubstr("pass it to init_distributed")));
}

TEST_F(InitDistributed, NamesInvalidOptions) {
  EXPECT_THAT(
      [] { init_distributed({.dist_backend = "mpi"}); },
      ThrowsMessage<ConfigError>(HasSubstr("expected nccl, gloo or shm")));
  EXPECT_THAT(
      [] { init_distributed({.init_method = "file:///tmp/x"}); },
      ThrowsMessage<ConfigError>(HasSubstr("expected env:// or tcp://host:port")));
  EXPECT_THAT(
      [] { init_distributed({.init_method = "tcp://host"}); },
      ThrowsMessage<ConfigError>(HasSubstr("give rank and world_size")));
  EXPECT_THAT(
      [] { init_distributed({.init_method = "tcp://host", .rank = 0, .world_size = 1}); },
      ThrowsMessage<ConfigError>(HasSubstr("has no host and port")));
  EXPECT_THAT(
      [] { init_distributed({.rank = 0}); }, ThrowsMessage<ConfigError>(HasSubstr("give both")));
  EXPECT_THROW(init_distributed({.timeout = std::chrono::seconds(0)}), ConfigError);
  EXPECT_FALSE(is_distributed_initialized());
}

TEST_F(InitDistributed, AnInvalidFileIsReportedBeforeAnyRankWaits) {
  EngineNet net;
  EXPECT_THROW(initialize(net, {.config_json = R"({"train_batchsize": 4})"}), ConfigError);
  EXPECT_FALSE(is_distributed_initialized());
}

}  // namespace
}  // namespace lockstep
