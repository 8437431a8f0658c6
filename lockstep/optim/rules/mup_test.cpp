// SPDX-License-Identifier: Apache-2.0
// Against tests/golden/mup.json, which the Python package mup wrote, and by what muP is for.
#include "lockstep/optim/rules/mup.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/base/error.h"
#include "lockstep/optim/rules/adam.h"
#include "lockstep/optim/rules/sgd.h"
#include "lockstep/optim/test_parameters.h"

namespace lockstep::optim {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

NamedTensors named_of(const torch::nn::Module& module) {
  NamedTensors all;
  for (const auto& item : module.named_parameters()) {
    all.push_back({item.key(), item.value()});
  }
  return all;
}

/// That of make_mup.py.
struct GoldenNetImpl : torch::nn::Module {
  explicit GoldenNetImpl(int64_t width) {
    table = register_module("table", torch::nn::Embedding(5, width));
    hidden = register_module("hidden", torch::nn::Linear(width, width / 2 + 4));
    back = register_module(
        "back", torch::nn::Linear(torch::nn::LinearOptions(width / 2 + 4, width).bias(false)));
    out = register_module("out", MuReadout(width, 3, MuReadoutOptions{.output_mult = 2}));
  }
  at::Tensor forward(const at::Tensor& ids) {
    return out(at::tanh(back(at::tanh(hidden(table(ids))))));
  }
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear hidden{nullptr}, back{nullptr};
  MuReadout out{nullptr};
};
TORCH_MODULE(GoldenNet);

void expect_near_golden(const at::Tensor& got, const json& expected, const std::string& what) {
  const at::Tensor values = at::tensor(expected.get<std::vector<double>>(), at::kDouble);
  const double off = (got.detach().to(at::kDouble).flatten() - values).abs().max().item<double>();
  EXPECT_LT(off, 3e-6) << what;
}

template <typename Optimizer, typename Options>
void expect_as_python(const char* name, const Options& options, MupScaling scaling) {
  static const json golden = [] {
    std::ifstream file(LOCKSTEP_SOURCE_DIR "/tests/golden/mup.json");
    return json::parse(file).at("cases");
  }();
  const json& expected = golden.at(name);
  GoldenNet net(24);
  {
    const at::NoGradGuard no_grad;
    int64_t k = 0;
    for (auto& parameter : net->parameters()) {
      parameter.copy_(numbers(parameter.sizes(), 3 * k++, 5, 11, 16));
    }
  }
  const InfShapes shapes = set_base_shapes(*net, *GoldenNet(8), *GoldenNet(16));
  const NamedTensors parameters = named_of(*net);
  for (size_t k = 0; k < parameters.size(); ++k) {
    expect_near_golden(
        parameters[k].tensor, expected["rescaled"][k], "rescaled " + parameters[k].name);
  }
  const auto groups = with_options(mup_groups(parameters, shapes, scaling), options);
  ASSERT_EQ(groups.size(), expected["groups"].size());
  for (size_t i = 0; i < groups.size(); ++i) {
    const json& group = expected["groups"][i];
    EXPECT_DOUBLE_EQ(groups[i].options.lr, group["lr"].get<double>());
    EXPECT_DOUBLE_EQ(groups[i].options.weight_decay, group["weight_decay"].get<double>());
    EXPECT_EQ(groups[i].parameters.size(), group["parameters"].size());
  }
  Optimizer optimizer(groups);
  const at::Tensor ids = at::arange(20, at::kLong).remainder(5);
  const auto losses = expected["losses"].get<std::vector<double>>();
  for (size_t step = 0; step < losses.size(); ++step) {
    const auto t = static_cast<int64_t>(step);
    const at::Tensor target = numbers({20, 3}, t, 7, 18, 8).to(at::kFloat);
    const at::Tensor loss = (net->forward(ids) - target).square().mean();
    EXPECT_NEAR(loss.item<double>(), losses[step], 1e-5);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
  }
  for (size_t k = 0; k < parameters.size(); ++k) {
    expect_near_golden(parameters[k].tensor, expected["end"][k], parameters[k].name);
  }
}

TEST(MupGolden, MuAdam) {
  expect_as_python<Adam>("MuAdam", AdamOptions{.lr = 0.02, .weight_decay = 0.1}, MupScaling::kAdam);
}

TEST(MupGolden, MuAdamW) {
  expect_as_python<AdamW>(
      "MuAdamW", AdamWOptions{.lr = 0.02, .weight_decay = 0.1}, MupScaling::kAdam);
}

TEST(MupGolden, MuSGD) {
  expect_as_python<SGD>(
      "MuSGD", SGDOptions{.lr = 0.02, .momentum = 0.9, .weight_decay = 0.1}, MupScaling::kSgd);
}

TEST(Mup, DimensionsThatDifferAreWidths) {
  const ParameterSizes base = {{"matrix", {16, 8}}, {"input", {16, 7}}, {"bias", {16}}, {"x", {3}}};
  const ParameterSizes delta = {
      {"matrix", {32, 24}}, {"input", {32, 7}}, {"bias", {32}}, {"x", {3}}};
  torch::nn::Module model;
  model.register_parameter("matrix", at::zeros({64, 16}));
  model.register_parameter("input", at::zeros({64, 7}));
  model.register_parameter("bias", at::zeros({64}));
  model.register_parameter("x", at::zeros({3}));
  const InfShapes shapes = set_base_shapes(model, base, delta);
  EXPECT_EQ(shapes.at("matrix").ninf(), 2U);
  EXPECT_EQ(shapes.at("matrix").width_mult(), 2);
  EXPECT_EQ(shapes.at("matrix").fanin_fanout_mult_ratio(), 0.5);
  EXPECT_EQ(shapes.at("input").ninf(), 1U);
  EXPECT_EQ(shapes.at("input").width_mult(), 4);
  EXPECT_EQ(shapes.at("bias").width_mult(), 4);
  EXPECT_EQ(shapes.at("x").ninf(), 0U);
  EXPECT_EQ(shapes.at("x").width_mult(), 1);
  // A width like the base's: only a delta can say that it is one.
  torch::nn::Module narrow;
  narrow.register_parameter("bias", at::zeros({16}));
  const ParameterSizes same = {{"bias", {16}}};
  EXPECT_EQ(set_base_shapes(narrow, same).at("bias").ninf(), 0U);
  EXPECT_EQ(set_base_shapes(narrow, same, ParameterSizes{{"bias", {32}}}).at("bias").ninf(), 1U);
}

TEST(Mup, ModelsThatDoNotCompareAreErrorsThatSayWhy) {
  GoldenNet net(24);
  const auto refused = [](const std::function<void()>& call, const std::string& what) {
    EXPECT_THAT(call, ThrowsMessage<ConfigError>(HasSubstr(what)));
  };
  refused([&] { net->forward(at::zeros({2}, at::kLong)); }, "call optim::set_base_shapes first");
  ParameterSizes base = sizes_of(*GoldenNet(8));
  base.erase("out.bias");
  refused([&] { set_base_shapes(*net, base); }, "base has no parameter out.bias");
  base["out.bias"] = {3, 1};
  refused(
      [&] { set_base_shapes(*net, base); },
      "parameter out.bias has shape [3] in the model, [3, 1] in base");
  torch::nn::Linear last(24, 3);
  refused(
      [&] { set_base_shapes(*last, *torch::nn::Linear(8, 3), *torch::nn::Linear(16, 3)); },
      "replace it by a MuReadout");
  const InfShapes shapes = set_base_shapes(*net, *GoldenNet(8), *GoldenNet(16));
  refused(
      [&] { set_base_shapes(*net, *GoldenNet(8), *GoldenNet(16)); },
      "a MuReadout is already rescaled");
  set_base_shapes(*net, *GoldenNet(8), *GoldenNet(16), /*rescale_params=*/false);
  refused(
      [&] { mup_groups(named_of(*last), shapes, MupScaling::kAdam); },
      "parameter weight has no shape");
}

TEST(Mup, FrozenParametersAreSkippedAndWeightDecayMayBeDecoupled) {
  GoldenNet net(24);
  const InfShapes shapes = set_base_shapes(*net, *GoldenNet(8), *GoldenNet(16));
  net->table->weight.set_requires_grad(false);
  size_t count = 0;
  for (const MupGroup& group : mup_groups(named_of(*net), shapes, MupScaling::kSgd, true)) {
    count += group.parameters.size();
    EXPECT_EQ(group.weight_decay_factor, 1);
  }
  EXPECT_EQ(count, net->parameters().size() - 1);
}

/// The model of the coordinate check: two hidden layers.
struct SweptImpl : torch::nn::Module {
  explicit SweptImpl(int64_t width) {
    in = register_module("in", torch::nn::Linear(16, width));
    first = register_module("first", torch::nn::Linear(width, width));
    second = register_module("second", torch::nn::Linear(width, width));
    out = register_module("out", MuReadout(width, 4));
  }
  std::vector<at::Tensor> forward(const at::Tensor& x) {
    std::vector<at::Tensor> made = {in(x)};
    made.push_back(first(at::relu(made.back())));
    made.push_back(second(at::relu(made.back())));
    made.push_back(out(at::relu(made.back())));
    return made;
  }
  torch::nn::Linear in{nullptr}, first{nullptr}, second{nullptr};
  MuReadout out{nullptr};
};
TORCH_MODULE(Swept);

using MakeOptimizer = std::function<std::shared_ptr<torch::optim::Optimizer>(
    const NamedTensors& parameters, const InfShapes& shapes)>;

/// How much three steps change what each layer computes: the mean size of an element's change.
std::vector<double> changes(int64_t width, const MakeOptimizer& make) {
  torch::manual_seed(7);
  Swept net(width);
  const InfShapes shapes = set_base_shapes(*net, *Swept(32), *Swept(64));
  const auto optimizer = make(named_of(*net), shapes);
  const at::Tensor x = at::sin(at::arange(32 * 16, at::kFloat)).reshape({32, 16});
  const at::Tensor target = at::arange(32, at::kLong).remainder(4);
  const auto before = net->forward(x);
  for (int step = 0; step < 3; ++step) {
    optimizer->zero_grad();
    torch::nn::functional::cross_entropy(net->forward(x).back(), target).backward();
    optimizer->step();
  }
  const auto after = net->forward(x);
  std::vector<double> sizes;
  for (size_t i = 0; i < before.size(); ++i) {
    sizes.push_back((after[i] - before[i]).abs().mean().item<double>());
  }
  return sizes;
}

/// Of the widest model over the narrowest, for the layer that grows most and the one that shrinks
/// most.
std::pair<double, double> growth(const MakeOptimizer& make) {
  const auto narrow = changes(32, make);
  const auto wide = changes(1024, make);
  double most = 0;
  double least = 1e9;
  for (size_t i = 0; i < narrow.size(); ++i) {
    most = std::max(most, wide[i] / narrow[i]);
    least = std::min(least, wide[i] / narrow[i]);
  }
  return {most, least};
}

TEST(MupCoordinateCheck, UpdatesAreOfOneSizeInModelsOfAnyWidth) {
  const auto [adam_most, adam_least] = growth([](const auto& parameters, const auto& shapes) {
    return std::make_shared<AdamW>(
        with_options(mup_groups(parameters, shapes, MupScaling::kAdam), AdamWOptions{.lr = 0.005}));
  });
  EXPECT_LT(adam_most, 2.5);
  EXPECT_GT(adam_least, 0.4);
  const auto [sgd_most, sgd_least] = growth([](const auto& parameters, const auto& shapes) {
    return std::make_shared<SGD>(
        with_options(mup_groups(parameters, shapes, MupScaling::kSgd), SGDOptions{.lr = 0.1}));
  });
  EXPECT_LT(sgd_most, 2.5);
  EXPECT_GT(sgd_least, 0.4);
}

TEST(MupCoordinateCheck, SeesRatesThatAreNotScaled) {
  const double adam_most =
      growth([](const auto& parameters, const auto& /*shapes*/) {
        return std::make_shared<AdamW>(tensors_of(parameters), AdamWOptions{.lr = 0.005});
      }).first;
  EXPECT_GT(adam_most, 6);
  const double sgd_least =
      growth([](const auto& parameters, const auto& /*shapes*/) {
        return std::make_shared<SGD>(tensors_of(parameters), SGDOptions{.lr = 0.1});
      }).second;
  EXPECT_LT(sgd_least, 0.2);
}

}  // namespace
}  // namespace lockstep::optim
