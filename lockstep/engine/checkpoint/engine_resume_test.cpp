// SPDX-License-Identifier: Apache-2.0
// Saving again, and going on otherwise than the run that saved.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/checkpoint/reader.h"
#include "lockstep/engine/engine.h"
#include "lockstep/engine/test_engine.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(EngineResume, ATagThatExistsIsSavedAgain) {
  for (const int stage : {0, 2, 3}) {
    const TestFolder folder;
    on_engine_ranks(2, simple_config(1, stage), [&](InitializeOptions options) {
      EngineNet net;
      auto made = initialize(net, options);
      auto& engine = std::get<0>(made);
      train(engine, 0, 1);
      engine.save_checkpoint(folder.path(), "best", {.client_state = 1});
      engine.save_checkpoint(folder.path());
      train(engine, 1, 3);
      engine.save_checkpoint(folder.path(), "best", {.client_state = 2});
      EngineNet other;
      auto second = initialize(other, options);
      auto& again = std::get<0>(second);
      EXPECT_EQ(again.load_checkpoint(folder.path()).client_state, 2);
      EXPECT_EQ(again.global_steps(), 3);
      // Back to the first update, whose successors bear the names of those before.
      again.load_checkpoint(folder.path(), "global_step1");
      EXPECT_EQ(again.save_checkpoint(folder.path()), folder.path() / "global_step1");
      again.load_checkpoint(folder.path());
      EXPECT_EQ(again.global_steps(), 1);
    });
  }
}

TEST(EngineResume, AFolderThatIsNotACheckpointIsNeverReplaced) {
  const TestFolder folder;
  std::filesystem::create_directories(folder / "mine");
  std::ofstream(folder / "mine" / "notes.txt") << "of the user";
  on_engines(2, simple_config(1), [&](TestEngine& engine, EngineNet&) {
    EXPECT_THAT(
        [&] { engine.save_checkpoint(folder.path(), "mine"); },
        ThrowsMessage<CheckpointError>(HasSubstr("is not a checkpoint")));
  });
  EXPECT_TRUE(std::filesystem::exists(folder / "mine" / "notes.txt"));
}

TEST(EngineResume, ADifferentNumberOfMicroStepsBeginsANewUpdate) {
  const TestFolder folder;
  at::Tensor expected;
  on_engines(2, simple_config(1), [&](TestEngine& engine, EngineNet& net) {
    train(engine, 0, 5);
    engine.save_checkpoint(folder.path());
    train(engine, 5, 6);
    if (engine.accelerator().is_main_process()) {
      expected = net->fc->weight.detach().clone();
    }
  });
  // As many samples per update: half the ranks, twice the micro-steps.
  on_engines(1, simple_config(2), [&](TestEngine& engine, EngineNet& net) {
    engine.load_checkpoint(folder.path());
    EXPECT_EQ(engine.micro_steps(), 10);
    for (const bool boundary : {false, true}) {
      EXPECT_EQ(engine.is_gradient_accumulation_boundary(), boundary);
      train(engine, 5, 6);
    }
    EXPECT_EQ(engine.global_steps(), 6);
    EXPECT_TRUE(at::allclose(net->fc->weight, expected, 1e-5, 1e-6));
  });
}

TEST(EngineResume, GradientsOfOtherMicroStepsAreRefusedBeforeAnythingChanges) {
  const TestFolder folder;
  on_engine_ranks(1, simple_config(4), [&](InitializeOptions options) {
    EngineNet net;
    auto made = initialize(net, options);
    auto& engine = std::get<0>(made);
    train(engine, 0, 6);
    engine.save_checkpoint(folder.path(), "mid");
    EngineNet other;
    auto second = initialize(other, options);
    std::get<0>(second).load_checkpoint(folder.path());
    EXPECT_EQ(std::get<0>(second).micro_steps(), 6) << "the same micro-steps: the update continues";
    train(engine, 6, 8);
    train(std::get<0>(second), 6, 8);
    EXPECT_TRUE(at::equal(other->fc->weight, net->fc->weight));
  });
  on_engines(1, simple_config(2), [&](TestEngine& engine, EngineNet& net) {
    const at::Tensor before = net->fc->weight.detach().clone();
    EXPECT_THAT(
        [&] { engine.load_checkpoint(folder.path()); },
        ThrowsMessage<CheckpointError>(
            AllOf(HasSubstr("within an update of 4 micro-steps"), HasSubstr("updates of 2"))));
    EXPECT_EQ(engine.global_steps(), 0);
    EXPECT_TRUE(at::equal(net->fc->weight, before));
    // Without them an update begins.
    engine.load_checkpoint(folder.path(), std::nullopt, {.load_optimizer_states = false});
    EXPECT_EQ(engine.global_steps(), 1);
    EXPECT_EQ(engine.micro_steps(), 2);
    EXPECT_FALSE(engine.is_gradient_accumulation_boundary());
  });
}

TEST(EngineResume, ClientStateMayHaveInfinities) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const TestFolder folder;
  on_engines(2, simple_config(1), [&](TestEngine& engine, EngineNet&) {
    const nlohmann::json state = {
        {"best_loss", kInfinity}, {"worst", {-kInfinity, std::nan("")}}, {"epoch", 3}};
    engine.save_checkpoint(folder.path(), "first", {.client_state = state});
    for (const bool module_only : {false, true}) {
      const auto loaded =
          engine.load_checkpoint(folder.path(), std::nullopt, {.load_module_only = module_only});
      EXPECT_EQ(loaded.client_state.at("best_loss").get<double>(), kInfinity);
      EXPECT_EQ(loaded.client_state.at("worst")[0].get<double>(), -kInfinity);
      EXPECT_TRUE(std::isnan(loaded.client_state.at("worst")[1].get<double>()));
      EXPECT_EQ(loaded.client_state.at("epoch"), 3);
    }
  });
}

std::string with_schedule(const std::string& type, const std::string& params) {
  return R"({"train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
    "scheduler": {"type": ")" +
         type + R"(", "params": {)" + params + "}}}";
}

TEST(EngineResume, AnUnusedScheduleIsSkippedWithAWarning) {
  const TestFolder folder;
  const std::string scheduled = with_schedule("WarmupLR", R"("warmup_num_steps": 10)");
  on_engines(1, scheduled, [&](TestEngine& engine, EngineNet&) {
    train(engine, 0, 2);
    engine.save_checkpoint(folder.path(), "scheduled");
  });
  std::string said;
  set_log_sink([&](const std::string& line) { said += line + "\n"; });
  on_engines(1, simple_config(1), [&](TestEngine& engine, EngineNet&) {
    engine.load_checkpoint(folder.path());
    EXPECT_EQ(engine.global_steps(), 2);
    engine.save_checkpoint(folder.path(), "plain");
  });
  set_log_sink({});
  EXPECT_THAT(said, HasSubstr("has a learning rate schedule, which is not loaded"));
  on_engines(1, scheduled, [&](TestEngine& engine, EngineNet&) {
    EXPECT_THAT(
        [&] { engine.load_checkpoint(folder.path(), "plain"); },
        ThrowsMessage<CheckpointError>(AllOf(
            HasSubstr("holds 0 schedulers, this program prepared 1"),
            HasSubstr("load_lr_scheduler_states = false"))));
  });
}

TEST(EngineResume, DeepspeedsSchedulesStayAtTheirLastRate) {
  const auto rates = [](const std::string& type, const std::string& params) {
    std::vector<double> all;
    on_engines(1, with_schedule(type, params), [&](TestEngine& engine, EngineNet&) {
      for (int step = 0; step < 7; ++step) {
        train(engine, step, step + 1);
        all.push_back(engine.get_lr().front());
      }
    });
    return all;
  };
  const auto decay = rates(
      "WarmupDecayLR",
      R"("total_num_steps": 4, "warmup_num_steps": 2, "warmup_max_lr": 0.1, "warmup_min_lr": 0.02)");
  EXPECT_GT(decay[3], 0.02);
  for (size_t step = 4; step < decay.size(); ++step) {
    EXPECT_DOUBLE_EQ(decay[step], 0.02);
  }
  const auto cosine = rates(
      "WarmupCosineLR", R"("total_num_steps": 4, "warmup_num_steps": 2, "cos_min_ratio": 0.25)");
  for (size_t step = 4; step < cosine.size(); ++step) {
    EXPECT_NEAR(cosine[step], 0.0025, 1e-12);
  }
}

std::vector<std::string> saved_names(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const NamedTensor& item : checkpoint::Reader(folder).tensor_set("model")) {
    names.push_back(item.name);
  }
  return names;
}

TEST(EngineResume, FrozenParametersMayBeOmittedAndStayUnchanged) {
  for (const int stage : {0, 2, 3}) {
    SCOPED_TRACE(stage);
    const TestFolder folder;
    on_engine_ranks(2, simple_config(1, stage), [&](InitializeOptions options) {
      const auto frozen_net = [](double value) {
        EngineNet net;
        net->register_buffer("scale", at::full({3}, value));
        const at::NoGradGuard no_grad;
        net->fc->weight.fill_(value);
        net->fc->weight.set_requires_grad(false);
        return net;
      };
      EngineNet net = frozen_net(0.25);
      auto made = initialize(net, options);
      auto& engine = std::get<0>(made);
      train(engine, 0, 2);
      engine.save_checkpoint(folder.path(), "all");
      engine.save_checkpoint(folder.path(), "trained", {.exclude_frozen_parameters = true});
      const at::Tensor trained = full_value(engine.accelerator(), net, net->head->weight);
      EngineNet other = frozen_net(0.5);
      auto second = initialize(other, options);
      auto& fresh = std::get<0>(second);
      fresh.load_checkpoint(folder.path(), "trained");
      EXPECT_TRUE(at::equal(
          full_value(fresh.accelerator(), other, other->fc->weight), at::full({16, 6}, 0.5)));
      EXPECT_TRUE(at::equal(full_value(fresh.accelerator(), other, other->head->weight), trained));
      EXPECT_TRUE(at::equal(other->named_buffers()["scale"], at::full({3}, 0.25)));
      train(fresh, 2, 3);
      fresh.load_checkpoint(folder.path(), "all");
      EXPECT_TRUE(at::equal(
          full_value(fresh.accelerator(), other, other->fc->weight), at::full({16, 6}, 0.25)));
    });
    EXPECT_THAT(
        saved_names(folder / "trained"),
        ::testing::UnorderedElementsAre("fc.bias", "head.bias", "head.weight", "scale"));
    EXPECT_EQ(saved_names(folder / "all").size(), 5U);
  }
}

TEST(EngineResume, SamplesASecondAreThoseOfThisRun) {
  const TestFolder folder;
  const std::string config = R"({"train_micro_batch_size_per_gpu": 1000000000000,
    "steps_per_print": 1, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}})";
  on_engine_ranks(1, config, [&](InitializeOptions options) {
    EngineNet net;
    auto made = initialize(net, options);
    train(std::get<0>(made), 0, 1);
    std::get<0>(made).save_checkpoint(folder.path());
    EngineNet other;
    auto second = initialize(other, options);
    auto& engine = std::get<0>(second);
    engine.load_checkpoint(folder.path());
    engine.set_train_micro_batch_size(4);
    std::string said;
    set_log_sink([&](const std::string& line) { said += line + "\n"; });
    train(engine, 1, 2);
    set_log_sink({});
    const std::string label = "samples per second=";
    ASSERT_THAT(said, HasSubstr(label));
    EXPECT_LT(std::stod(said.substr(said.find(label) + label.size())), 1e9);
  });
}

}  // namespace
}  // namespace lockstep
