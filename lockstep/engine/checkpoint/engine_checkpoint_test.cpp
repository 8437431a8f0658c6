// SPDX-License-Identifier: Apache-2.0
#include <fstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <torch/nn/modules/linear.h>

#include "lockstep/base/error.h"
#include "lockstep/base/memory/crc32c.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/checkpoint/weights/safetensors.h"
#include "lockstep/engine/engine.h"
#include "lockstep/engine/test_engine.h"
#include "lockstep/storage/test_files.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(EngineCheckpoint, ResumesInEveryStageFromEveryOther) {
  const TestFolder folder;
  std::vector<double> unbroken;
  on_engines(2, simple_config(1), [&](TestEngine& engine, EngineNet&) {
    const auto losses = train(engine, 0, 6);
    if (engine.accelerator().is_main_process()) {
      unbroken = losses;
    }
  });
  for (int saved = 0; saved <= 3; ++saved) {
    const auto dir = folder.path() / std::to_string(saved);
    on_engines(2, simple_config(1, saved), [&](TestEngine& engine, EngineNet&) {
      train(engine, 0, 3);
      EXPECT_EQ(
          engine.save_checkpoint(dir, std::nullopt, {.client_state = {{"step", 7}}}),
          dir / "global_step3");
    });
    for (int loaded = 0; loaded <= 3; ++loaded) {
      on_engines(
          loaded == 1 ? 3 : 2, simple_config(1, loaded), [&](TestEngine& engine, EngineNet&) {
            const LoadedCheckpoint from = engine.load_checkpoint(dir);
            EXPECT_EQ(from.path, dir / "global_step3");
            EXPECT_EQ(from.client_state, (nlohmann::json{{"step", 7}}));
            EXPECT_EQ(engine.global_steps(), 3);
            const auto losses = train(engine, 3, 6);
            for (size_t i = 0; i < losses.size(); ++i) {
              EXPECT_NEAR(losses[i], unbroken[i + 3], 1e-5) << saved << " to " << loaded;
            }
          });
    }
  }
}

TEST(EngineCheckpoint, TheDynamicLossScaleIsResumed) {
  const TestFolder folder;
  const std::string config = R"({"train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
    "fp16": {"enabled": true, "initial_scale_power": 4, "loss_scale_window": 3}})";
  on_engine_ranks(1, config, [&](InitializeOptions options) {
    EngineNet net;
    auto made = initialize(net, options);
    auto& engine = std::get<0>(made);
    train(engine, 0, 3);
    engine.save_checkpoint(folder.path(), "half");
    train(engine, 3, 9);
    EngineNet again;
    auto resumed = initialize(again, options);
    auto& other = std::get<0>(resumed);
    other.load_checkpoint(folder.path());
    train(other, 3, 9);
    EXPECT_EQ(other.loss_scale(), engine.loss_scale());
    EXPECT_GT(other.loss_scale(), 16);
  });
}

TEST(EngineCheckpoint, NothingToLoadIsAWarning) {
  const TestFolder folder;
  on_engines(2, simple_config(1), [&](TestEngine& engine, EngineNet&) {
    EXPECT_TRUE(engine.load_checkpoint(folder.path()).path.empty());
    EXPECT_THROW(engine.load_checkpoint(folder.path(), "not_there"), CheckpointError);
  });
}

TEST(EngineCheckpoint, ATagIsANumberOrANameAndTheSameOnAllRanks) {
  const TestFolder folder;
  on_engine_ranks(2, simple_config(1), [&](InitializeOptions options) {
    const int rank = options.connected->group.rank();
    EngineNet net;
    auto made = initialize(net, std::move(options));
    auto& engine = std::get<0>(made);
    // The seed document tags by the loss, which differs between ranks: rank 0's counts.
    EXPECT_EQ(engine.save_checkpoint(folder.path(), 0.5 + rank), folder.path() / "0.5");
    EXPECT_EQ(engine.load_checkpoint(folder.path(), 0.5).path, folder.path() / "0.5");
    for (const char* tag : {"", "..", "a/b", "latest"}) {
      EXPECT_THROW(engine.save_checkpoint(folder.path(), tag), ConfigError) << tag;
    }
  });
  const std::string strict = R"({"train_micro_batch_size_per_gpu": 4,
    "checkpoint": {"tag_validation": "FAIL"},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}})";
  on_engine_ranks(2, strict, [&](InitializeOptions options) {
    const int rank = options.connected->group.rank();
    EngineNet net;
    auto made = initialize(net, std::move(options));
    EXPECT_THAT(
        [&] { std::get<0>(made).save_checkpoint(folder.path(), rank); },
        ThrowsMessage<ConfigError>(HasSubstr("different tags: 0, 1")));
  });
}

TEST(EngineCheckpoint, TheSeedsKeywordWorksTooAndLatestCanBeLeft) {
  const TestFolder folder;
  on_engines(1, simple_config(1), [&](TestEngine& engine, EngineNet&) {
    engine.save_checkpoint(folder.path(), "a", {.client_sd = {{"module", "mine"}}});
    engine.save_checkpoint(folder.path(), "b", {.save_latest = false});
    const auto loaded = engine.load_checkpoint(folder.path());
    EXPECT_EQ(loaded.path, folder.path() / "a");
    EXPECT_EQ(loaded.client_state.at("module"), "mine") << "no name of ours is in the way";
    EXPECT_THROW(
        engine.save_checkpoint(folder.path(), "c", {.client_state = 1, .client_sd = 1}),
        ConfigError);
  });
}

TEST(EngineCheckpoint, ACheckpointThatNoEngineSavedIsRefused) {
  const TestFolder folder;
  on_engines(1, simple_config(1), [&](TestEngine& engine, EngineNet&) {
    Accelerator plain({}, WorldSpec{}, Group());
    plain.save_state(folder.path() / "plain");
    EXPECT_THAT(
        [&] { engine.load_checkpoint(folder.path(), "plain"); },
        ThrowsMessage<CheckpointError>(HasSubstr("was not saved by an engine")));
    EXPECT_THAT(
        [&] {
          engine.load_checkpoint(
              LOCKSTEP_SOURCE_DIR "/tests/golden/accelerate_state",
              "adam",
              {.load_module_only = true});
        },
        ThrowsMessage<CheckpointError>(HasSubstr("can only be loaded in full")));
  });
}

std::string scheduled_config(int stage, const std::string& more = "") {
  return R"({"train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10, "warmup_max_lr": 0.1}},
    "zero_optimization": {"stage3_param_persistence_threshold": 0, "stage": )" +
         std::to_string(stage) + "}" + more + "}";
}

TEST(EngineCheckpoint, ATagThatDoesNotExistIsReportedWithTheExistingOnes) {
  const TestFolder folder;
  on_engines(2, simple_config(1), [&](TestEngine& engine, EngineNet&) {
    engine.save_checkpoint(folder.path(), "first");
    engine.save_checkpoint(folder.path(), "second");
    const std::string dir = folder.path().string();
    EXPECT_THAT(
        [&] { engine.load_checkpoint(folder.path(), "third"); },
        ThrowsMessage<CheckpointError>(AllOf(
            HasSubstr("[" + dir + "/third"),
            HasSubstr("does not exist; " + dir + " holds the tags first, second;"))));
    EXPECT_THAT(
        [&] { engine.load_checkpoint(folder / "absent", "first"); },
        ThrowsMessage<CheckpointError>(HasSubstr("/absent is not a folder;")));
    engine.load_checkpoint(folder.path(), "first");
  });
  std::ofstream(folder / "latest") << "third\n";
  on_engines(2, simple_config(1), [&](TestEngine& engine, EngineNet&) {
    EXPECT_THAT(
        [&] { engine.load_checkpoint(folder.path()); },
        ThrowsMessage<CheckpointError>(HasSubstr("does not exist, though latest names it;")));
  });
}

TEST(EngineCheckpoint, ADeepspeedCheckpointIsNamedWithItsConversion) {
  const TestFolder folder;
  const auto tag = folder / "global_step10";
  std::filesystem::create_directory(tag);
  for (const char* name :
       {"mp_rank_00_model_states.pt",
        "zero_pp_rank_0_mp_rank_00_optim_states.pt",
        "zero_pp_rank_1_mp_rank_00_optim_states.pt"}) {
    std::ofstream(tag / name) << "PK";
  }
  std::ofstream(folder / "zero_to_fp32.py") << "";
  std::ofstream(folder / "latest") << "global_step10";
  const auto says = ThrowsMessage<CheckpointError>(AllOf(
      HasSubstr("is a DeepSpeed checkpoint"),
      HasSubstr("zero_to_fp32.py"),
      HasSubstr("OUT --safe_serialization --tag global_step10")));
  on_engines(2, simple_config(1), [&](TestEngine& engine, EngineNet&) {
    EXPECT_THAT([&] { engine.load_checkpoint(folder.path()); }, says);
    EXPECT_THAT([&] { engine.load_checkpoint(folder.path(), "global_step10"); }, says);
    // The folder of the tag in place of that of the tags.
    EXPECT_THAT([&] { engine.load_checkpoint(tag); }, says);
  });
}

TEST(EngineCheckpoint, InvalidCountersAreRefusedWithFileAndKey) {
  const TestFolder folder;
  on_engines(1, simple_config(1), [&](TestEngine& engine, EngineNet&) {
    engine.save_checkpoint(folder.path(), "good");
    const auto file = folder / "good" / "engine.json";
    nlohmann::json state = nlohmann::json::parse(std::ifstream(file));
    state["global_steps"] = -5;
    const std::string text = state.dump();
    std::ofstream(file) << text;
    storage::edit_manifest(folder / "good", [&](nlohmann::json& manifest) {
      for (nlohmann::json& record : manifest["files"]) {
        if (record["name"] == "engine.json") {
          record["bytes"] = text.size();
          record["crc32c"] = fmt::format("{:08x}", crc32c(text));
        }
      }
    });
    EXPECT_THAT(
        [&] { engine.load_checkpoint(folder.path(), "good"); },
        ThrowsMessage<CheckpointError>(AllOf(
            HasSubstr("good/engine.json"), HasSubstr("got \"-5\" for global_steps, expected"))));
  });
}

TEST(EngineCheckpoint, TheModuleAloneLoadsWithoutCountersOptimizerOrSchedule) {
  for (const int stage : {0, 3}) {
    const TestFolder folder;
    on_engine_ranks(2, scheduled_config(stage), [&](InitializeOptions options) {
      EngineNet net;
      auto made = initialize(net, options);
      auto& engine = std::get<0>(made);
      train(engine, 0, 3);
      engine.save_checkpoint(folder.path(), "three", {.client_state = {{"epoch", 2}}});
      const at::Tensor saved = full_value(engine.accelerator(), net, net->fc->weight);
      EngineNet other;
      auto second = initialize(other, options);
      auto& fresh = std::get<0>(second);
      const auto loaded =
          fresh.load_checkpoint(folder.path(), std::nullopt, {.load_module_only = true});
      EXPECT_EQ(loaded.path, folder.path() / "three");
      EXPECT_EQ(loaded.client_state.at("epoch"), 2);
      EXPECT_TRUE(at::equal(full_value(fresh.accelerator(), other, other->fc->weight), saved))
          << stage;
      EXPECT_EQ(fresh.global_steps(), 0);
      EXPECT_EQ(std::get<1>(second).steps(), 0);
      EXPECT_EQ(std::get<3>(second).steps(), 0);
      train(fresh, 0, 1);
      EXPECT_EQ(fresh.global_steps(), 1);
    });
  }
}

TEST(EngineCheckpoint, OptimizerAndScheduleMayStayAsTheyAre) {
  const TestFolder folder;
  on_engine_ranks(2, scheduled_config(2), [&](InitializeOptions options) {
    EngineNet net;
    auto made = initialize(net, options);
    auto& engine = std::get<0>(made);
    train(engine, 0, 3);
    engine.save_checkpoint(folder.path());
    const at::Tensor saved = full_value(engine.accelerator(), net, net->fc->weight);
    const auto load = [&](const LoadCheckpointOptions& what, int64_t updates, int64_t rates) {
      EngineNet other;
      auto second = initialize(other, options);
      auto& fresh = std::get<0>(second);
      fresh.load_checkpoint(folder.path(), std::nullopt, what);
      EXPECT_TRUE(at::equal(full_value(fresh.accelerator(), other, other->fc->weight), saved));
      EXPECT_EQ(fresh.global_steps(), 3);
      EXPECT_EQ(std::get<1>(second).steps(), updates);
      EXPECT_EQ(std::get<3>(second).steps(), rates);
    };
    load({}, 3, 3);
    load({.load_optimizer_states = false}, 0, 3);
    load({.load_lr_scheduler_states = false}, 3, 0);
  });
}

TEST(EngineCheckpoint, WithoutTheOptimizerItMayBeAnotherAndAnotherPrecision) {
  const TestFolder folder;
  on_engines(
      1,
      scheduled_config(0, R"(, "fp16": {"enabled": true, "initial_scale_power": 4})"),
      [&](TestEngine& engine, EngineNet&) { engine.save_checkpoint(folder.path()); });
  on_engines(
      1,
      R"({"train_batch_size": 4, "optimizer": {"type": "SGD", "params": {"lr": 0.01}}})",
      [&](TestEngine& engine, EngineNet&) {
        EXPECT_THROW(engine.load_checkpoint(folder.path()), CheckpointError);
        engine.load_checkpoint(
            folder.path(),
            std::nullopt,
            {.load_optimizer_states = false, .load_lr_scheduler_states = false});
        train(engine, 0, 1);
      });
}

/// With a bias more than what is saved, and a layer of another name.
struct OtherNetImpl : torch::nn::Module {
  OtherNetImpl() {
    fc = register_module("fc", torch::nn::Linear(6, 16));
    tail = register_module("tail", torch::nn::Linear(16, 2));
  }
  at::Tensor forward(const at::Tensor& x) { return tail(at::tanh(fc(x))); }
  torch::nn::Linear fc{nullptr}, tail{nullptr};
};
TORCH_MODULE(OtherNet);

TEST(EngineCheckpoint, AModuleThatDiffersLoadsInPartIfThatIsWanted) {
  for (const int stage : {0, 3}) {
    const TestFolder folder;
    on_engine_ranks(2, simple_config(1, stage), [&](InitializeOptions options) {
      EngineNet net;
      auto made = initialize(net, options);
      std::get<0>(made).save_checkpoint(folder.path());
      const at::Tensor saved = full_value(std::get<0>(made).accelerator(), net, net->fc->weight);
      OtherNet other;
      auto second = initialize(other, options);
      auto& engine = std::get<0>(second);
      EXPECT_THAT(
          [&] { engine.load_checkpoint(folder.path(), std::nullopt, {.load_module_only = true}); },
          ThrowsMessage<CheckpointError>(HasSubstr("missing: [tail.weight, tail.bias]")));
      engine.load_checkpoint(
          folder.path(), std::nullopt, {.load_module_strict = false, .load_module_only = true});
      engine.accelerator().with_gathered_parameters(
          other->parameters(), [&] { EXPECT_TRUE(at::equal(other->fc->weight, saved)) << stage; });
    });
  }
}

TEST(Save16bitModel, WritesFullWeightsRoundedInEveryStage) {
  const TestFolder folder;
  for (int stage = 0; stage <= 3; ++stage) {
    const auto dir = folder.path() / std::to_string(stage);
    on_engines(
        2,
        scheduled_config(stage, R"(, "bf16": {"enabled": true})"),
        [&](TestEngine& engine, EngineNet& net) {
          train(engine, 0, 2);
          EXPECT_TRUE(engine.save_16bit_model(dir));
          EXPECT_TRUE(engine.save_16bit_model(dir, "half.safetensors", at::kHalf));
          const at::Tensor weight = full_value(engine.accelerator(), net, net->fc->weight);
          if (engine.accelerator().is_main_process()) {
            const storage::SafetensorsMap rounded(dir / "model.safetensors");
            EXPECT_EQ(rounded.names().size(), 4U);
            EXPECT_TRUE(
                at::equal(checkpoint::tensor_of(rounded, "fc.weight"), weight.to(at::kBFloat16)))
                << "stage " << stage;
            const storage::SafetensorsMap half(dir / "half.safetensors");
            EXPECT_TRUE(at::equal(checkpoint::tensor_of(half, "fc.weight"), weight.to(at::kHalf)));
          }
          train(engine, 2, 3);  // It has disturbed nothing.
        });
  }
}

TEST(Save16bitModel, OmitsFrozenParametersOnRequest) {
  for (const int stage : {0, 2, 3}) {
    const TestFolder folder;
    on_engine_ranks(2, simple_config(1, stage), [&](InitializeOptions options) {
      EngineNet net;
      net->register_buffer("scale", at::ones({3}));
      net->fc->weight.set_requires_grad(false);
      auto made = initialize(net, std::move(options));
      auto& engine = std::get<0>(made);
      engine.save_16bit_model(folder.path(), "all.safetensors", at::kHalf);
      engine.save_16bit_model(folder.path(), "trained.safetensors", at::kHalf, true);
    });
    const storage::SafetensorsMap all(folder / "all.safetensors");
    EXPECT_EQ(all.names().size(), 5U) << stage;
    const storage::SafetensorsMap trained(folder / "trained.safetensors");
    EXPECT_THAT(
        trained.names(),
        ::testing::UnorderedElementsAre("fc.bias", "head.bias", "head.weight", "scale"))
        << stage;
  }
}

TEST(Save16bitModel, NeedsA16BitDtypeAndASafetensorsName) {
  const TestFolder folder;
  on_engines(2, simple_config(1), [&](TestEngine& engine, EngineNet&) {
    EXPECT_THAT(
        [&] { engine.save_16bit_model(folder.path()); },
        ThrowsMessage<ConfigError>(HasSubstr("computes in float32")));
    EXPECT_THROW(
        engine.save_16bit_model(folder.path(), "model.safetensors", at::kDouble), ConfigError);
    EXPECT_THAT(
        [&] { engine.save_16bit_model(folder.path(), "pytorch_model.bin", at::kHalf); },
        ThrowsMessage<Error>(HasSubstr("file_name is not the name of a safetensors file")));
  });
}

}  // namespace
}  // namespace lockstep
