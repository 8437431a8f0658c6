// SPDX-License-Identifier: Apache-2.0
// torch_autocast.lower_precision_safe_modules.
#include <cstddef>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <torch/nn/modules/normalization.h>

#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/engine/engine.h"
#include "lockstep/engine/test_engine.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

/// Linear layers with a norm between them.
struct NormedNetImpl : torch::nn::Module {
  NormedNetImpl() {
    fc = register_module("fc", torch::nn::Linear(6, 16));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({16})));
    head = register_module("head", torch::nn::Linear(16, 2));
    const at::NoGradGuard no_grad;
    for (auto& parameter : parameters()) {
      parameter.copy_(
          at::sin(at::arange(parameter.numel(), at::kFloat) + 1).reshape(parameter.sizes()) / 2);
    }
  }
  at::Tensor forward(const at::Tensor& x) { return head(at::tanh(norm(fc(x)))); }
  torch::nn::Linear fc{nullptr}, head{nullptr};
  torch::nn::LayerNorm norm{nullptr};
};
TORCH_MODULE(NormedNet);

std::string autocast_config(
    int stage,
    const std::string& modules,
    const std::string& dtype = "bfloat16",
    const std::string& more = "") {
  return R"({"train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
    "comms_logger": {"enabled": true, "debug": true},
    "zero_optimization": {"stage3_param_persistence_threshold": 0, "stage": )" +
         std::to_string(stage) + R"(}, "torch_autocast": {"enabled": true, "dtype": ")" + dtype +
         "\"" + (modules.empty() ? "" : R"(, "lower_precision_safe_modules": )" + modules) + "}" +
         more + "}";
}

constexpr const char* kLinear = R"(["torch.nn.Linear"])";

struct Outcome {
  std::vector<double> losses;       ///< Of rank 0.
  std::vector<at::Tensor> trained;  ///< Exact, by rank 0.
  std::string summary;              ///< What it sent.
};

template <typename Engine>
double train_step(Engine& engine) {
  const int rank = engine.accelerator().process_index();
  const at::Tensor loss = engine(engine_batch(1 + 7 * rank)).square().mean();
  engine.backward(loss);
  engine.step();
  return loss.template item<double>();
}

Outcome outcome_of(const std::string& config, int world = 2) {
  Outcome outcome;
  on_engine_ranks(world, config, [&](InitializeOptions options) {
    Group group = options.connected->group;
    NormedNet net;
    auto made = initialize(net, std::move(options));
    auto& engine = std::get<0>(made);
    std::vector<double> losses;
    for (int step = 0; step < 12; ++step) {
      losses.push_back(train_step(engine));
    }
    const std::vector<at::Tensor> values = full_values(engine.accelerator(), net);
    for (const at::Tensor& parameter : net->parameters()) {
      const at::Tensor here = parameter.detach().clone();
      EXPECT_EQ(here.scalar_type(), at::kFloat);
      EXPECT_TRUE(at::equal(here, group.broadcast(here.clone()).wait())) << "equal bits";
    }
    const std::string summary = engine.log_summary();
    if (group.rank() == 0) {
      outcome = {losses, values, summary};
    }
  });
  return outcome;
}

TEST(LowerPrecisionModules, AreSentIn16BitsInEveryStageAndTrainAlike) {
  for (int stage = 0; stage <= 3; ++stage) {
    SCOPED_TRACE("stage " + std::to_string(stage));
    const Outcome wide = outcome_of(autocast_config(stage, ""));
    const Outcome narrow = outcome_of(autocast_config(stage, kLinear));
    const std::string gradients = stage == 0 ? "all_reduce" : "reduce_scatter";
    EXPECT_THAT(wide.summary, Not(HasSubstr("bfloat16[")));
    EXPECT_THAT(
        narrow.summary, HasSubstr(gradients + (stage == 0 ? "(sum)" : "(avg)") + " of bfloat16["));
    EXPECT_THAT(narrow.summary, HasSubstr(gradients + "(avg) of float[")) << "those of the norm";
    const auto parameters = HasSubstr("all_gather of bfloat16[");
    if (stage == 3) {
      EXPECT_THAT(narrow.summary, parameters);
    } else {
      EXPECT_THAT(narrow.summary, Not(parameters));
    }
    // Autocast rounds these weights anyway.
    EXPECT_DOUBLE_EQ(narrow.losses[0], wide.losses[0]);
    for (size_t i = 0; i < wide.losses.size(); ++i) {
      EXPECT_NEAR(narrow.losses[i], wide.losses[i], 0.02 * wide.losses[0]) << i;
    }
    EXPECT_LT(wide.losses.back(), wide.losses.front());
    bool differs = false;
    for (size_t i = 0; i < wide.trained.size(); ++i) {
      differs = differs || !at::equal(narrow.trained[i], wide.trained[i]);
    }
    EXPECT_TRUE(differs) << "nothing was rounded";
  }
}

TEST(LowerPrecisionModules, StagesHaveTheSameNumbers) {
  const Outcome first = outcome_of(autocast_config(1, kLinear));
  for (const int stage : {0, 2, 3}) {
    const Outcome other = outcome_of(autocast_config(stage, kLinear));
    for (size_t i = 0; i < first.losses.size(); ++i) {
      EXPECT_NEAR(other.losses[i], first.losses[i], 2e-3 * first.losses[0]) << stage << ", " << i;
    }
  }
}

TEST(LowerPrecisionModules, AnEmptyListAndOneProcessRoundNothing) {
  for (const int stage : {0, 3}) {
    const Outcome wide = outcome_of(autocast_config(stage, ""));
    const Outcome empty = outcome_of(autocast_config(stage, "[]"));
    EXPECT_EQ(empty.losses, wide.losses);
    EXPECT_THAT(empty.summary, Not(HasSubstr("bfloat16[")));
    EXPECT_EQ(
        outcome_of(autocast_config(stage, kLinear), 1).losses,
        outcome_of(autocast_config(stage, ""), 1).losses);
  }
}

TEST(LowerPrecisionModules, AreSentInFloat16BelowALossScale) {
  for (int stage = 0; stage <= 3; ++stage) {
    const Outcome narrow =
        outcome_of(autocast_config(stage, R"(["Linear", "LayerNormImpl"])", "fp16"));
    EXPECT_THAT(narrow.summary, HasSubstr(" of half[")) << stage;
    EXPECT_THAT(narrow.summary, Not(HasSubstr("(avg) of float["))) << stage;
    EXPECT_LT(narrow.losses.back(), narrow.losses.front()) << stage;
  }
}

TEST(CommunicationDataType, ItIsTheDtypeOfAllSentGradientsInEveryStageAndOfNoParameters) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const std::string wire : {"bf16", "fp16"}) {
      SCOPED_TRACE("stage " + std::to_string(stage) + ", " + wire);
      const std::string plain = R"({"train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
        "comms_logger": {"enabled": true, "debug": true},
        "zero_optimization": {"stage3_param_persistence_threshold": 0, "stage": )" +
                                std::to_string(stage) + "}";
      const Outcome wide = outcome_of(plain + "}");
      const Outcome narrow = outcome_of(plain + R"(, "communication_data_type": ")" + wire + "\"}");
      const std::string gradients = stage == 0 ? "all_reduce(sum)" : "reduce_scatter(avg)";
      EXPECT_THAT(
          narrow.summary, HasSubstr(gradients + " of " + (wire == "bf16" ? "bfloat16[" : "half[")));
      EXPECT_THAT(narrow.summary, Not(HasSubstr("(avg) of float[")));
      EXPECT_THAT(narrow.summary, Not(HasSubstr("all_gather of bfloat16[")));
      EXPECT_THAT(narrow.summary, Not(HasSubstr("all_gather of half[")));
      EXPECT_EQ(narrow.losses[0], wide.losses[0]);
      for (size_t i = 0; i < wide.losses.size(); ++i) {
        EXPECT_NEAR(narrow.losses[i], wide.losses[i], 0.02 * wide.losses[0]) << i;
      }
      EXPECT_NE(narrow.losses.back(), wide.losses.back()) << "nothing was rounded";
    }
  }
}

TEST(LowerPrecisionModules, AreSavedExactAndLoadedByOtherStages) {
  const TestFolder folder;
  std::vector<at::Tensor> saved;
  on_engine_ranks(2, autocast_config(3, kLinear), [&](InitializeOptions options) {
    const bool first = options.connected->group.rank() == 0;
    NormedNet net;
    auto made = initialize(net, std::move(options));
    auto& engine = std::get<0>(made);
    train_step(engine);
    engine.save_checkpoint(folder.path(), "one");
    const at::Tensor computed_with = net->fc->weight.detach().clone();
    const std::vector<at::Tensor> values = full_values(engine.accelerator(), net);
    EXPECT_FALSE(at::equal(values[0], computed_with));
    EXPECT_TRUE(at::equal(values[0].to(at::kBFloat16).to(at::kFloat), computed_with));
    EXPECT_TRUE(at::equal(engine.safe_get_full_fp32_param(net->fc->weight), values[0]));
    if (first) {
      saved = values;
    }
  });
  for (const int stage : {0, 2, 3}) {
    on_engine_ranks(2, autocast_config(stage, kLinear), [&](InitializeOptions options) {
      NormedNet net;
      auto made = initialize(net, std::move(options));
      auto& engine = std::get<0>(made);
      engine.load_checkpoint(folder.path(), "one");
      const std::vector<at::Tensor> values = full_values(engine.accelerator(), net);
      for (size_t i = 0; i < values.size(); ++i) {
        EXPECT_TRUE(at::equal(values[i], saved[i])) << stage << ", " << i;
      }
      train_step(engine);
    });
  }
}

void expect_initialize_refused(
    const std::string& config,
    const std::string& what,
    const AcceleratorOptions& accelerator = {}) {
  on_engine_ranks(1, config, [&](InitializeOptions options) {
    options.accelerator = accelerator;
    NormedNet net;
    EXPECT_THAT(
        [&] { initialize(net, std::move(options)); }, ThrowsMessage<ConfigError>(HasSubstr(what)))
        << config;
  });
}

TEST(LowerPrecisionModules, ThatTheModelLacksAreErrorsAtTheKey) {
  const std::string config =
      R"({"train_micro_batch_size_per_gpu": 4, "torch_autocast": {"enabled": true,
  "dtype": "bf16",
  "lower_precision_safe_modules": ["Linear", "Conv2d"]}})";
  const std::string key = "torch_autocast.lower_precision_safe_modules";
  expect_initialize_refused(
      config,
      "config_json:3:35] " + key + " names a class that the model does not have; got \"Conv2d\"");
  expect_initialize_refused(
      config, "NormedNetImpl, torch::nn::LayerNormImpl, torch::nn::LinearImpl");
  expect_initialize_refused(
      autocast_config(2, R"(["NormedNet"])"), "got \"NormedNet\", which has none itself");
}

TEST(LowerPrecisionModules, NeedAutocastAndExcludeOtherOptionsForTheSame) {
  expect_initialize_refused(
      R"({"train_micro_batch_size_per_gpu": 4,
          "torch_autocast": {"lower_precision_safe_modules": ["Linear"]}})",
      "needs torch_autocast.enabled");
  expect_initialize_refused(
      autocast_config(0, kLinear, "bf16", R"(, "communication_data_type": "bf16")"),
      "communication_data_type bf16 is for all gradients and cannot be combined");
  AcceleratorOptions twice;
  twice.lower_precision_safe_modules = {.classes = {"Linear"}};
  expect_initialize_refused(autocast_config(0, kLinear), "is set by the configuration file", twice);
  AcceleratorOptions hook;
  hook.data_parallel.comm_hook.type = CommHookType::kFp16;
  expect_initialize_refused(
      autocast_config(0, kLinear),
      "the comm hook fp16 sets the communication dtype of all gradients",
      hook);
}

}  // namespace
}  // namespace lockstep
