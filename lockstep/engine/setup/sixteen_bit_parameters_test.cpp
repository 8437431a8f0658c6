// SPDX-License-Identifier: Apache-2.0
// The engine with parameters of 16 bits: training is what one process does by hand.
#include <algorithm>
#include <cstddef>
#include <fstream>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/checkpoint/reader.h"
#include "lockstep/checkpoint/weights/safetensors.h"
#include "lockstep/engine/engine.h"
#include "lockstep/engine/test_engine.h"
#include "lockstep/optim/flat_optimizer.h"
#include "lockstep/optim/rules/adam.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int kUpdates = 5;
constexpr int kMicroSteps = 3;
constexpr double kScale = 128;  // fp16's loss scale, a power of two.

std::string word(at::ScalarType dtype) {
  return dtype == at::kHalf ? "fp16" : "bf16";
}

struct File {
  at::ScalarType dtype = at::kBFloat16;
  int stage = 1;
  std::string section = {};     ///< More of fp16 or bf16.
  std::string data_types = {};  ///< All of it.
  std::string zero = {};        ///< More of it.
  std::string optimizer = {};   ///< More of its params.
  std::string more = {};        ///< Of the file.
};

std::string config_text(const File& file) {
  const std::string scale = file.dtype == at::kHalf ? R"(, "loss_scale": 128)" : "";
  return R"({"train_micro_batch_size_per_gpu": 4, "gradient_clipping": 0,
    "gradient_accumulation_steps": )" +
         std::to_string(kMicroSteps) + R"(, ")" + word(file.dtype) + R"(": {"enabled": true)" +
         scale + file.section + R"(}, "data_types": {)" + file.data_types +
         R"(}, "optimizer": {"type": "AdamW", "params": {"lr": 0.01)" + file.optimizer +
         R"(}}, "zero_optimization": {"stage3_param_persistence_threshold": 0, "stage": )" +
         std::to_string(file.stage) + file.zero + "}" + file.more + "}";
}

std::string param_dtype(at::ScalarType dtype) {
  return R"("param_dtype": ")" + word(dtype) + "\"";
}

/// The dtypes with which one process trains.
struct Recipe {
  at::ScalarType dtype = at::kBFloat16;
  at::ScalarType sums = at::kBFloat16;  ///< What micro-steps add up in.
  at::ScalarType sent = at::kFloat;     ///< What sums are rounded to.
  at::ScalarType masters = at::kFloat;
  at::ScalarType state = at::kFloat;
};

std::vector<double> sixteen_bit_losses_by_hand(const Recipe& recipe) {
  EngineNet net;
  net->to(recipe.dtype);
  const std::vector<at::Tensor> parameters = net->parameters();
  std::vector<at::Tensor> masters;
  std::vector<std::vector<at::Tensor>> state;
  for (const at::Tensor& parameter : parameters) {
    masters.push_back(parameter.detach().to(recipe.masters).clone());
    state.push_back(
        {at::zeros(parameter.sizes(), recipe.state), at::zeros(parameter.sizes(), recipe.state)});
  }
  std::vector<double> losses;
  for (int update = 0; update < kUpdates; ++update) {
    std::vector<at::Tensor> sums(parameters.size());
    double mean = 0;
    for (int micro_step = 0; micro_step < kMicroSteps; ++micro_step) {
      at::Tensor result;
      {
        const Autocast cast(at::kCPU, recipe.dtype);
        result = net->forward(engine_batch(update * kMicroSteps + micro_step));
      }
      const at::Tensor loss = result.to(at::kFloat).square().mean() / double{kMicroSteps};
      const double scale = recipe.dtype == at::kHalf ? kScale : 1;
      (loss * scale).backward();
      mean += loss.item<double>();
      const at::NoGradGuard no_grad;
      for (size_t i = 0; i < parameters.size(); ++i) {
        const at::Tensor gradient = parameters[i].grad().to(recipe.sums);
        sums[i] = sums[i].defined() ? sums[i] + gradient : gradient.clone();
        parameters[i].mutable_grad().reset();
        if (micro_step == kMicroSteps - 1) {
          sums[i] = sums[i].to(recipe.sent).to(recipe.masters) / scale;
        }
      }
    }
    losses.push_back(mean);
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor wide = masters[i].to(at::kFloat).clone().set_requires_grad(true);
      optim::AdamW optimizer({wide}, {.lr = 0.01, .weight_decay = 0});
      optimizer.set_state(
          wide,
          {.step = update,
           .fields = {state[i][0].to(at::kFloat), state[i][1].to(at::kFloat), at::Tensor()}});
      wide.mutable_grad() = sums[i].to(at::kFloat);
      optimizer.step();
      masters[i].copy_(wide.detach());
      parameters[i].copy_(masters[i]);
      for (size_t field = 0; field < 2; ++field) {
        state[i][field].copy_(optimizer.state_of(wide).fields[field]);
      }
    }
  }
  return losses;
}

template <typename Engine>
std::vector<double> train_updates(Engine& engine, int from, int to) {
  std::vector<double> losses;
  for (int update = from; update < to; ++update) {
    double mean = 0;
    for (int micro_step = 0; micro_step < kMicroSteps; ++micro_step) {
      const at::Tensor result = engine(engine_batch(update * kMicroSteps + micro_step));
      EXPECT_EQ(result.scalar_type(), at::kFloat);
      mean += engine.backward(result.square().mean()).template item<double>();
      engine.step();
    }
    losses.push_back(mean);
  }
  return losses;
}

void expect_training(const File& file, const Recipe& recipe, bool born_narrow = false) {
  const std::vector<double> expected = sixteen_bit_losses_by_hand(recipe);
  for (const int world : {1, 2}) {
    on_engine_ranks(world, config_text(file), [&](InitializeOptions options) {
      EngineNet net;
      if (born_narrow) {
        net->to(recipe.dtype);
      }
      auto made = initialize(net, std::move(options));
      EXPECT_EQ(net->fc->weight.scalar_type(), recipe.dtype);
      EXPECT_EQ(std::get<0>(made).zero_optimization_stage(), file.stage);
      const std::vector<double> losses = train_updates(std::get<0>(made), 0, kUpdates);
      for (size_t i = 0; i < losses.size(); ++i) {
        EXPECT_DOUBLE_EQ(losses[i], expected[i])
            << config_text(file) << ", " << world << " ranks, update " << i;
      }
    });
  }
}

TEST(SixteenBitParameters, EveryStageTrainsAsOneProcessWithFloat32Masters) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (int stage = 0; stage <= 3; ++stage) {
      const at::ScalarType sums = stage < 2 ? dtype : at::kFloat;
      for (const bool born_narrow : {false, true}) {
        expect_training(
            {.dtype = dtype, .stage = stage, .data_types = born_narrow ? "" : param_dtype(dtype)},
            {.dtype = dtype, .sums = sums},
            born_narrow);
      }
    }
  }
}

TEST(SixteenBitParameters, GradientsAddUpInGradAccumDtype) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    ASSERT_NE(
        sixteen_bit_losses_by_hand({.dtype = dtype, .sums = dtype}),
        sixteen_bit_losses_by_hand({.dtype = dtype, .sums = at::kFloat}));
    for (int stage = 0; stage <= 3; ++stage) {
      for (const at::ScalarType sums : {dtype, at::kFloat}) {
        // As in DeepSpeed's BF16_Optimizer, stage 1 sends float32 sums in the parameters' dtype.
        expect_training(
            {.dtype = dtype,
             .stage = stage,
             .data_types = param_dtype(dtype) + R"(, "grad_accum_dtype": ")" +
                           (sums == at::kFloat ? "fp32" : word(dtype)) + "\""},
            {.dtype = dtype, .sums = sums, .sent = stage < 2 ? dtype : at::kFloat});
      }
    }
  }
}

TEST(SixteenBitParameters, Fp32SumsAreSentInFp32OnRequest) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    ASSERT_NE(
        sixteen_bit_losses_by_hand({.dtype = dtype, .sums = at::kFloat, .sent = dtype}),
        sixteen_bit_losses_by_hand({.dtype = dtype, .sums = at::kFloat}));
    for (int stage = 0; stage <= 1; ++stage) {
      expect_training(
          {.dtype = dtype,
           .stage = stage,
           .data_types = param_dtype(dtype) + R"(, "grad_accum_dtype": "fp32")",
           .more = R"(, "communication_data_type": "fp32")"},
          {.dtype = dtype, .sums = at::kFloat});
    }
  }
}

/// Those of tests/golden/make_narrow.py.
TEST(SixteenBitParameters, LossesAreThoseOfDeepspeedByTheSameFile) {
  std::ifstream file(LOCKSTEP_SOURCE_DIR "/tests/golden/narrow.json");
  const nlohmann::json all = nlohmann::json::parse(file);
  EXPECT_GE(all.size(), 19U);
  for (const nlohmann::json& golden : all) {
    const auto expected = golden.at("losses").get<std::vector<double>>();
    for (const int world : {1, 2}) {
      on_engines(world, golden.at("config").dump(), [&](TestEngine& engine, EngineNet&) {
        const std::vector<double> losses = train_updates(engine, 0, kUpdates);
        // A sum of three in another order; what is rounded otherwise is off by 1e-4.
        EXPECT_THAT(losses, ::testing::Pointwise(::testing::DoubleNear(1e-6), expected))
            << golden.at("config") << ", " << world << " ranks";
      });
    }
  }
}

constexpr const char* kOnHost = R"(, "offload_optimizer": {"device": "cpu"})";

TEST(SixteenBitParameters, Bf16MastersAreTheParametersUpdatedInFloat32) {
  for (int stage = 1; stage <= 3; ++stage) {
    for (const bool narrow_state : {false, true}) {
      for (const bool on_host : {false, true}) {
        if (!narrow_state && !on_host) {
          continue;  // Refused, as in DeepSpeed.
        }
        expect_training(
            {.stage = stage,
             .section = std::string(R"(, "bf16_master_weights_and_grads": true)") +
                        (narrow_state ? R"(, "bf16_optimizer_states": true)" : ""),
             .zero = on_host ? kOnHost : ""},
            {.masters = at::kBFloat16, .state = narrow_state ? at::kBFloat16 : at::kFloat});
      }
    }
  }
}

TEST(SixteenBitParameters, Fp16MastersAreTheParametersAndStateHasTheRequestedDtype) {
  for (int stage = 1; stage <= 3; ++stage) {
    for (const bool narrow_state : {false, true}) {
      expect_training(
          {.dtype = at::kHalf,
           .stage = stage,
           .section = R"(, "fp16_master_weights_and_grads": true)",
           .zero = kOnHost,
           .optimizer = narrow_state ? R"(, "fp32_optimizer_states": false)" : ""},
          {.dtype = at::kHalf,
           .sums = at::kHalf,
           .masters = at::kHalf,
           .state = narrow_state ? at::kHalf : at::kFloat});
    }
  }
}

TEST(SixteenBitParameters, SixteenBitMastersHave16BitState) {
  for (int stage = 1; stage <= 3; ++stage) {
    const File file{
        .stage = stage,
        .section = R"(, "bf16_master_weights_and_grads": true, "bf16_optimizer_states": true)"};
    on_engine_ranks(2, config_text(file), [](InitializeOptions options) {
      EngineNet net;
      auto made = initialize(net, std::move(options));
      train_updates(std::get<0>(made), 0, 1);
      const Optimizer& optimizer = std::get<1>(made);
      const auto& inner = dynamic_cast<optim::FlatOptimizer&>(optimizer.inner());
      for (const at::Tensor& shard_slice : optimizer.parameters()) {
        EXPECT_EQ(shard_slice.scalar_type(), at::kBFloat16);
        for (const at::Tensor& field : inner.state_of(shard_slice).fields) {
          EXPECT_TRUE(!field.defined() || field.scalar_type() == at::kBFloat16);
        }
      }
    });
  }
}

TEST(SixteenBitParameters, BuffersAreCastOnRequestAndSomeStayFp32) {
  const File file{.data_types = R"("buffer_dtype": "bf16", "keep_in_fp32_modules": ["router"])"};
  on_engine_ranks(2, config_text(file), [](InitializeOptions options) {
    EngineNet net;
    net->register_buffer("scale", at::ones({3}));
    net->register_buffer("router_bias", at::ones({3}, at::kBFloat16));
    initialize(net, std::move(options));
    EXPECT_EQ(net->fc->weight.scalar_type(), at::kFloat);
    EXPECT_EQ(net->named_buffers()["scale"].scalar_type(), at::kBFloat16);
    EXPECT_EQ(net->named_buffers()["router_bias"].scalar_type(), at::kFloat);
  });
}

/// Returns the full masters of a parameter.
at::Tensor masters_of(Engine<EngineNet>& engine) {
  return engine.safe_get_full_fp32_param(engine.module()->fc->weight);
}

TEST(SixteenBitParameters, ResumesBitExactlyAndSavesMastersAnd16Bits) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (int stage = 0; stage <= 3; ++stage) {
      const TestFolder folder;
      const File file{.dtype = dtype, .stage = stage, .data_types = param_dtype(dtype)};
      on_engine_ranks(2, config_text(file), [&](InitializeOptions options) {
        EngineNet net;
        auto made = initialize(net, options);
        auto& engine = std::get<0>(made);
        train_updates(engine, 0, 2);
        engine.save_checkpoint(folder.path(), "two");
        engine.save_16bit_model(folder.path());
        const at::Tensor masters = masters_of(engine);
        const std::vector<double> unbroken = train_updates(engine, 2, kUpdates);

        EngineNet other;
        auto second = initialize(other, options);
        auto& resumed = std::get<0>(second);
        train_updates(resumed, 3, 4);
        resumed.load_checkpoint(folder.path(), "two");
        EXPECT_TRUE(at::equal(masters_of(resumed), masters));
        EXPECT_EQ(train_updates(resumed, 2, kUpdates), unbroken)
            << word(dtype) << " stage " << stage;

        if (engine.accelerator().is_main_process()) {
          const storage::SafetensorsMap model(folder.path() / "model.safetensors");
          EXPECT_TRUE(at::equal(checkpoint::tensor_of(model, "fc.weight"), masters.to(dtype)));
          // merge-weights reads these files.
          const checkpoint::Reader reader(folder.path() / "two");
          const NamedTensors saved = reader.tensor_set("model");
          const auto found = std::find_if(saved.begin(), saved.end(), [](const NamedTensor& item) {
            return item.name == "fc.weight";
          });
          ASSERT_NE(found, saved.end());
          EXPECT_EQ(found->tensor.scalar_type(), at::kFloat);
          EXPECT_TRUE(at::equal(found->tensor, masters));
        }
      });
    }
  }
}

TEST(SixteenBitParameters, SixteenBitMastersResumeBitExactly) {
  for (int stage = 1; stage <= 3; ++stage) {
    const TestFolder folder;
    const File file{
        .stage = stage,
        .section = R"(, "bf16_master_weights_and_grads": true, "bf16_optimizer_states": true)"};
    on_engine_ranks(2, config_text(file), [&](InitializeOptions options) {
      EngineNet net;
      auto made = initialize(net, options);
      train_updates(std::get<0>(made), 0, 2);
      std::get<0>(made).save_checkpoint(folder.path(), "two");
      const std::vector<double> unbroken = train_updates(std::get<0>(made), 2, kUpdates);
      EngineNet other;
      auto second = initialize(other, options);
      std::get<0>(second).load_checkpoint(folder.path(), "two");
      EXPECT_EQ(train_updates(std::get<0>(second), 2, kUpdates), unbroken) << stage;
    });
  }
}

TEST(SixteenBitParameters, MastersAreLoadedRoundedOnRequest) {
  for (int stage = 0; stage <= 3; ++stage) {
    const TestFolder folder;
    const File file{.stage = stage, .data_types = param_dtype(at::kBFloat16)};
    File rounding = file;
    rounding.zero = R"(, "load_from_fp32_weights": false)";
    at::Tensor saved;
    on_engines(2, config_text(file), [&](TestEngine& engine, EngineNet&) {
      train_updates(engine, 0, 2);
      engine.save_checkpoint(folder.path(), "two");
      const at::Tensor masters = masters_of(engine);
      if (engine.accelerator().is_main_process()) {
        saved = masters;
      }
    });
    const at::Tensor rounded = saved.to(at::kBFloat16).to(at::kFloat);
    ASSERT_FALSE(at::equal(saved, rounded));
    on_engines(2, config_text(rounding), [&](TestEngine& engine, EngineNet&) {
      engine.load_checkpoint(folder.path(), "two");
      EXPECT_TRUE(at::equal(masters_of(engine), rounded)) << stage;
    });
  }
}

TEST(SixteenBitParameters, Stage0NeedsNoOptimizerForForward) {
  std::string text = config_text({.stage = 0, .data_types = param_dtype(at::kBFloat16)});
  const size_t begin = text.find("\"optimizer\"");
  text.erase(begin, text.find("\"zero_optimization\"") - begin);
  on_engines(2, text, [](TestEngine& engine, EngineNet& net) {
    EXPECT_EQ(engine(engine_batch(0)).scalar_type(), at::kFloat);
    EXPECT_EQ(net->fc->weight.scalar_type(), at::kBFloat16);
  });
}

TEST(SixteenBitParameters, OptimizersOfFullParametersHaveMastersToo) {
  std::vector<std::vector<double>> losses;
  for (int stage = 0; stage <= 3; ++stage) {
    std::string text = config_text({.stage = stage, .data_types = param_dtype(at::kBFloat16)});
    text.replace(text.find("AdamW"), 5, "Lamb");
    on_engine_ranks(2, text, [&](InitializeOptions options) {
      const bool is_main = options.connected->world.rank == 0;
      EngineNet net;
      auto made = initialize(net, std::move(options));
      EXPECT_EQ(std::get<1>(made).parameters().at(0).scalar_type(), at::kFloat);
      const std::vector<double> of_rank = train_updates(std::get<0>(made), 0, kUpdates);
      if (is_main) {
        losses.push_back(of_rank);
      }
    });
    EXPECT_LT(losses.back().back(), losses.back().front());
    for (size_t i = 0; i < losses[0].size(); ++i) {
      EXPECT_NEAR(losses.back()[i], losses[0][i], 2e-2) << "stage " << stage;
    }
  }
}

TEST(SixteenBitParameters, Stage0RefusesAnOptimizerThatNeedsFullMasters) {
  const File file{.stage = 0, .data_types = param_dtype(at::kBFloat16)};
  on_engine_ranks(1, config_text(file), [](InitializeOptions options) {
    EngineNet net;
    options.optimizer =
        std::make_shared<torch::optim::SGD>(net->parameters(), torch::optim::SGDOptions(0.1));
    EXPECT_THAT(
        [&] { initialize(net, std::move(options)); },
        ThrowsMessage<ConfigError>(HasSubstr("use one of lockstep::optim")));
  });
}

}  // namespace
}  // namespace lockstep
