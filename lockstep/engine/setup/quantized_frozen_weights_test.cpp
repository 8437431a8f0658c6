// SPDX-License-Identifier: Apache-2.0
// zero_optimization.zero_quantized_nontrainable_weights.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/engine/engine.h"
#include "lockstep/engine/test_engine.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr const char* kInEightBits = R"(, "zero_quantized_nontrainable_weights": true)";

/// Its first weight is frozen.
EngineNet frozen_net() {
  EngineNet net;
  net->fc->weight.requires_grad_(false);
  return net;
}

TEST(FrozenIn8Bits, AreSavedAndLoadedByAnyNumberOfRanks) {
  const TestFolder folder;
  std::vector<at::Tensor> saved;
  on_engine_ranks(2, zero_config(3, kInEightBits), [&](InitializeOptions options) {
    EngineNet net = frozen_net();
    const at::Tensor exact = net->fc->weight.detach().clone();
    const at::Tensor trained = net->head->weight.detach().clone();
    auto made = initialize(net, std::move(options));
    auto& engine = std::get<0>(made);
    train(engine, 0, 3);
    auto values = full_values(engine.accelerator(), net);
    EXPECT_FALSE(at::equal(values[0], exact)) << "it is rounded";
    EXPECT_TRUE(at::allclose(values[0], exact, 0, 0.5 / 254 * 1.01));
    EXPECT_FALSE(at::equal(net->head->weight.detach(), trained));
    engine.save_checkpoint(folder.path());
    if (engine.accelerator().is_main_process()) {
      saved = std::move(values);
    }
  });
  const auto expect_loaded = [&](int world, const std::string& config, double off) {
    on_engine_ranks(world, config, [&](InitializeOptions options) {
      EngineNet net = frozen_net();
      auto made = initialize(net, std::move(options));
      auto& engine = std::get<0>(made);
      engine.load_checkpoint(folder.path());
      const auto values = full_values(engine.accelerator(), net);
      for (size_t i = 0; i < values.size(); ++i) {
        EXPECT_TRUE(at::allclose(values[i], saved[i], 0, i == 0 ? off : 0)) << i;
      }
      train(engine, 0, 3);
    });
  };
  expect_loaded(2, zero_config(3, kInEightBits), 0);
  expect_loaded(2, zero_config(3, ""), 0);
  expect_loaded(3, zero_config(1, ""), 0);
  expect_loaded(3, zero_config(3, kInEightBits), 0.5 / 254 * 1.01);  // Other blocks.
}

TEST(FrozenIn8Bits, AreForStage3AndNotForOffloadedParameters) {
  on_engine_ranks(1, zero_config(2, kInEightBits), [](InitializeOptions options) {
    EngineNet net = frozen_net();
    EXPECT_THAT(
        [&] { initialize(net, std::move(options)); },
        ThrowsMessage<ConfigError>(HasSubstr("is a part of ZeRO++, for stage 3; got stage 2")));
  });
  on_engine_ranks(
      1,
      zero_config(
          3, std::string(kInEightBits) + R"(, "cpu_offload": true, "cpu_offload_param": true)"),
      [](InitializeOptions options) {
        EngineNet net = frozen_net();
        EXPECT_THAT(
            [&] { initialize(net, std::move(options)); },
            ThrowsMessage<ConfigError>(HasSubstr("cannot be combined with offload_param")));
      });
}

}  // namespace
}  // namespace lockstep
