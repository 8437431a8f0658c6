// SPDX-License-Identifier: Apache-2.0
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/accelerator/zero_setup/dtypes.h"
#include "lockstep/base/error.h"
#include "lockstep/optim/rules/sgd.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// Two linear layers within a module, with a number of its own, and a norm.
struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    inner->push_back(torch::nn::Linear(4, 6));
    inner->push_back(torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})));
    inner->push_back(torch::nn::Linear(torch::nn::LinearOptions(6, 2).bias(false)));
    register_module("inner", inner);
    gain = register_parameter("gain", at::ones({1}));
  }
  at::Tensor forward(const at::Tensor& x) { return inner->forward(x) * gain; }
  torch::nn::Sequential inner;
  at::Tensor gain;
};
TORCH_MODULE(Block);

TEST(LowerPrecision, ClassesAreCalledAsInCppOrPython) {
  const std::string linear = "torch::nn::LinearImpl";
  for (const char* name :
       {"Linear",
        "LinearImpl",
        "torch::nn::Linear",
        "torch::nn::LinearImpl",
        "torch.nn.Linear",
        "torch.nn.modules.linear.Linear"}) {
    EXPECT_TRUE(internal::is_of_class(linear, name)) << name;
  }
  for (const char* name : {"linear", "Bilinear", "nn::Linear", "my::LinearImpl", "torch.nn", ""}) {
    EXPECT_FALSE(internal::is_of_class(linear, name)) << name;
  }
  EXPECT_TRUE(internal::is_of_class("my::BlockImpl", "my::BlockImpl"));
  EXPECT_TRUE(internal::is_of_class("my::BlockImpl", "transformers.models.bert.Block"));
  EXPECT_TRUE(internal::is_of_class("my::LinearImpl", "Linear"));
  EXPECT_FALSE(internal::is_of_class("my::LinearImpl", "torch.nn.Linear")) << "is torch's own";
  EXPECT_TRUE(internal::is_of_class("Block", "BlockImpl"));
}

TEST(LowerPrecision, IsAboutTheParametersThatAModuleHasItself) {
  const Block block;
  const NamedTensors parameters = parameters_of(*block);
  const internal::NamedClasses modules = classes_of(*block);
  const auto narrow = [&](std::vector<std::string> classes) {
    return internal::comm_dtypes({.classes = std::move(classes)}, parameters, modules);
  };
  EXPECT_TRUE(narrow({}).parameters.empty());
  EXPECT_EQ(narrow({"torch.nn.Linear"}).parameters.size(), 3U);
  EXPECT_EQ(narrow({"Linear", "torch::nn::LinearImpl", "LayerNorm"}).parameters.size(), 5U);
  const auto own = narrow({"BlockImpl"});
  EXPECT_EQ(own.parameters.size(), 1U);
  EXPECT_EQ(own.of(block->gain), at::kBFloat16);
  EXPECT_EQ(own.of(parameters.back().tensor), std::nullopt);
}

TEST(LowerPrecision, AClassThatSaysNothingIsAnErrorThatListsThoseThereAre) {
  const Block block;
  const NamedTensors parameters = parameters_of(*block);
  const internal::NamedClasses modules = classes_of(*block);
  const auto check = [&](const std::string& name) {
    return [&, name] {
      internal::check_lower_precision(
          {"Linear", name}, parameters, modules, "ds.json:3:4", "the.key");
    };
  };
  EXPECT_NO_THROW(check("LayerNorm")());
  EXPECT_NO_THROW(check("torch.nn.Conv2d")());
  EXPECT_THAT(
      [&] {
        internal::check_lower_precision(
            {"torch.nn.Conv1d", "torch.nn.Conv2d"}, parameters, modules, "prepare", "the.key");
      },
      ThrowsMessage<ConfigError>(HasSubstr("got \"torch.nn.Conv2d\", expected some of")));
  EXPECT_THAT(
      check("Conv2d"),
      ThrowsMessage<ConfigError>(::testing::AllOf(
          HasSubstr("[ds.json:3:4] the.key names a class that the model does not have; got "
                    "\"Conv2d\", expected some of"),
          HasSubstr(
              "torch::nn::LayerNormImpl, torch::nn::LinearImpl, torch::nn::SequentialImpl"))));
  EXPECT_THAT(
      check("Sequential"),
      ThrowsMessage<ConfigError>(HasSubstr("got \"Sequential\", which has none itself")));
  EXPECT_THAT(
      [&] {
        internal::comm_dtypes({.classes = {"Linear"}, .dtype = at::kFloat}, parameters, modules);
      },
      ThrowsMessage<ConfigError>(HasSubstr("needs a 16-bit dtype; got Float")));
}

TEST(LowerPrecision, IsForDataParallelAndEveryStage) {
  for (int stage = 0; stage <= 3; ++stage) {
    AcceleratorOptions options;
    options.lower_precision_safe_modules = {.classes = {"Linear"}};
    if (stage > 0) {
      options.zero = ZeroPlugin{.stage = stage};
    }
    accelerated_ranks(2, options, [&](Accelerator& accelerator) {
      const double factor = accelerator.is_main_process() ? 1 : 1 + 1.0 / 128;
      Block block;
      auto [model, optimizer] =
          accelerator.prepare(block, optim::SGD(block->parameters(), {.lr = 1}));
      const at::Tensor weight = model->parameters().back();
      const at::Tensor gain = model->gain;
      at::Tensor before;
      accelerator.with_gathered_parameters({weight}, [&] { before = weight.detach().clone(); });
      accelerator.backward((weight.sum() + gain.sum()) * factor);
      optimizer.step();
      accelerator.with_gathered_parameters({weight, gain}, [&] {
        // The mean is 1 + 2^-8, which bf16 rounds to 1.
        EXPECT_FLOAT_EQ(gain.item<float>(), -1.0F / 256) << "stage " << stage;
        const at::Tensor change = before - weight.detach();
        EXPECT_TRUE(at::allclose(change, at::ones_like(change), 0, 5e-4)) << "stage " << stage;
      });
    });
  }
}

}  // namespace
}  // namespace lockstep
