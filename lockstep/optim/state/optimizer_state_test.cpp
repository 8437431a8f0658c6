// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/state/optimizer_state.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/optim/rules/adadelta.h"
#include "lockstep/optim/rules/adafactor.h"
#include "lockstep/optim/rules/adagrad.h"
#include "lockstep/optim/rules/adam.h"
#include "lockstep/optim/rules/adamax.h"
#include "lockstep/optim/rules/asgd.h"
#include "lockstep/optim/rules/lamb.h"
#include "lockstep/optim/rules/lion.h"
#include "lockstep/optim/rules/nadam.h"
#include "lockstep/optim/rules/radam.h"
#include "lockstep/optim/rules/rmsprop.h"
#include "lockstep/optim/rules/rprop.h"
#include "lockstep/optim/rules/sgd.h"

namespace lockstep {
namespace {

namespace torch_optim = torch::optim;
using Parameters = std::vector<at::Tensor>;

struct OptimizerCase {
  const char* name;
  std::function<std::unique_ptr<torch_optim::Optimizer>(const Parameters&)> make;
};

class OptimizerStateTest : public ::testing::TestWithParam<OptimizerCase> {};

template <typename Type, typename Options>
OptimizerCase optimizer_case(const char* name, Options options) {
  return {name, [options](const Parameters& parameters) {
            return std::make_unique<Type>(parameters, options);
          }};
}

INSTANTIATE_TEST_SUITE_P(
    Kinds,
    OptimizerStateTest,
    ::testing::Values(
        optimizer_case<torch_optim::SGD>("SGD", torch_optim::SGDOptions(0.1).momentum(0.9)),
        optimizer_case<torch_optim::Adam>("Adam", torch_optim::AdamOptions(0.1).amsgrad(true)),
        optimizer_case<torch_optim::AdamW>("AdamW", torch_optim::AdamWOptions(0.1)),
        optimizer_case<torch_optim::Adagrad>("Adagrad", torch_optim::AdagradOptions(0.1)),
        optimizer_case<torch_optim::RMSprop>(
            "RMSprop", torch_optim::RMSpropOptions(0.1).momentum(0.5).centered(true)),
        optimizer_case<optim::SGD>("OurSGD", optim::SGDOptions{.lr = 0.1, .momentum = 0.9}),
        optimizer_case<optim::Adam>("OurAdam", optim::AdamOptions{.lr = 0.1, .amsgrad = true}),
        optimizer_case<optim::AdamW>("OurAdamW", optim::AdamWOptions{.lr = 0.1}),
        optimizer_case<optim::Adagrad>(
            "OurAdagrad", optim::AdagradOptions{.lr = 0.1, .initial_accumulator_value = 0.5}),
        optimizer_case<optim::RMSprop>(
            "OurRMSprop", optim::RMSpropOptions{.lr = 0.1, .momentum = 0.5, .centered = true}),
        optimizer_case<optim::Lion>("OurLion", optim::LionOptions{.lr = 0.1}),
        optimizer_case<optim::Adafactor>("OurAdafactor", optim::AdafactorOptions{.lr = 0.1}),
        optimizer_case<optim::Adadelta>("OurAdadelta", optim::AdadeltaOptions{.lr = 0.1}),
        optimizer_case<optim::Adamax>("OurAdamax", optim::AdamaxOptions{.lr = 0.1}),
        optimizer_case<optim::NAdam>(
            "OurNAdam", optim::NAdamOptions{.lr = 0.1, .momentum_decay = 0.1}),
        optimizer_case<optim::RAdam>("OurRAdam", optim::RAdamOptions{.lr = 0.1}),
        optimizer_case<optim::ASGD>(
            "OurASGD", optim::ASGDOptions{.lr = 0.1, .lambd = 0.5, .t0 = 2}),
        optimizer_case<optim::Rprop>("OurRprop", optim::RpropOptions{.lr = 0.1}),
        optimizer_case<optim::LAMB>("OurLAMB", optim::LAMBOptions{.lr = 0.1})),
    [](const auto& test) { return test.param.name; });

Parameters two_parameters() {
  return {
      at::linspace(-1, 1, 6).reshape({2, 3}).clone().requires_grad_(),
      at::linspace(2, 3, 4).clone().requires_grad_()};
}

void train(torch_optim::Optimizer& optimizer, const Parameters& parameters, int from, int to) {
  for (int step = from; step < to; ++step) {
    optimizer.zero_grad();
    ((parameters[0] * parameters[0]).sum() + (parameters[1] * step).sin().sum()).backward();
    optimizer.step();
  }
}

ParameterName namer(const Parameters& parameters) {
  return [parameters](const at::Tensor& parameter) {
    return parameter.is_same(parameters[0]) ? std::string("weight") : std::string("bias");
  };
}

TEST_P(OptimizerStateTest, ARestoredOptimizerContinuesBitExactly) {
  const Parameters uninterrupted = two_parameters();
  const auto expected = GetParam().make(uninterrupted);
  train(*expected, uninterrupted, 0, 10);

  const Parameters first = two_parameters();
  const auto before = GetParam().make(first);
  train(*before, first, 0, 4);
  before->param_groups()[0].options().set_lr(0.1);

  Parameters second = {
      first[0].detach().clone().requires_grad_(), first[1].detach().clone().requires_grad_()};
  const auto after = GetParam().make(second);
  check_optimizer(
      *after,
      namer(second),
      optimizer_tensors(*before, namer(first)),
      optimizer_settings(*before),
      "test")();
  train(*after, second, 4, 10);
  EXPECT_TRUE(at::equal(second[0], uninterrupted[0]));
  EXPECT_TRUE(at::equal(second[1], uninterrupted[1]));
}

TEST_P(OptimizerStateTest, NamesStateByParameter) {
  const Parameters parameters = two_parameters();
  const auto optimizer = GetParam().make(parameters);
  EXPECT_LE(optimizer_tensors(*optimizer, namer(parameters)).size(), 4U)
      << "no step yet: only Adagrad has state";
  train(*optimizer, parameters, 0, 1);
  for (const NamedTensor& item : optimizer_tensors(*optimizer, namer(parameters))) {
    EXPECT_THAT(item.name, ::testing::MatchesRegex("(weight|bias)\\.[a-z_]+"));
  }
  const std::string name = GetParam().name;
  EXPECT_EQ(optimizer_settings(*optimizer)["type"], name.substr(name.rfind("Our", 0) == 0 ? 3 : 0));
}

TEST(OptimizerState, RefusesMismatchedStateAndChangesNothing) {
  const Parameters parameters = two_parameters();
  torch_optim::Adam adam(parameters, torch_optim::AdamOptions(0.1));
  train(adam, parameters, 0, 2);
  const NamedTensors tensors = optimizer_tensors(adam, namer(parameters));
  const nlohmann::json settings = optimizer_settings(adam);

  torch_optim::SGD sgd(parameters, torch_optim::SGDOptions(0.1));
  EXPECT_THROW(check_optimizer(sgd, namer(parameters), tensors, settings, "file"), CheckpointError);

  const auto other_name = [](const at::Tensor&) { return std::string("other"); };
  EXPECT_THROW(check_optimizer(adam, other_name, tensors, settings, "file"), CheckpointError);

  NamedTensors wrong = tensors;
  wrong[0].tensor = at::ones({9});
  try {
    check_optimizer(adam, namer(parameters), wrong, settings, "file");
    FAIL() << "expected a CheckpointError";
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.tensor(), wrong[0].name);
    EXPECT_EQ(error.path(), "file");
  }
  nlohmann::json more_groups = settings;
  more_groups["param_groups"].push_back(more_groups["param_groups"][0]);
  EXPECT_THROW(
      check_optimizer(adam, namer(parameters), tensors, more_groups, "file"), CheckpointError);
  EXPECT_TRUE(at::equal(optimizer_tensors(adam, namer(parameters))[0].tensor, tensors[0].tensor));
}

void load(torch_optim::Optimizer& from, torch_optim::Optimizer& to, const Parameters& parameters) {
  check_optimizer(
      to,
      namer(parameters),
      optimizer_tensors(from, namer(parameters)),
      optimizer_settings(from),
      "test")();
}

TEST(OptimizerState, RestoresEveryHyperparameter) {
  const Parameters parameters = two_parameters();
  optim::LAMB ours(
      parameters,
      {.lr = 0.5,
       .betas = {0.7, 0.8},
       .eps = 0.1,
       .weight_decay = 0.2,
       .bias_correction = false,
       .max_coeff = INFINITY,
       .min_coeff = 0});
  optim::LAMB fresh(parameters);
  load(ours, fresh, parameters);
  EXPECT_EQ(optimizer_settings(fresh), optimizer_settings(ours));
  EXPECT_EQ(fresh.options().max_coeff, INFINITY);

  optim::Adafactor factor(parameters, {.eps = {1e-4, 1e-2}});
  optim::Adafactor plain(parameters);
  load(factor, plain, parameters);
  EXPECT_EQ(plain.options().eps.first, 1e-4);
  load(plain, factor, parameters);
  EXPECT_EQ(factor.options().eps.second, 1e-2);

  torch_optim::AdamW theirs(
      parameters, torch_optim::AdamWOptions(0.3).betas({0.7, 0.8}).weight_decay(0.4).amsgrad(true));
  torch_optim::AdamW other(parameters, torch_optim::AdamWOptions(0.1));
  load(theirs, other, parameters);
  EXPECT_EQ(optimizer_settings(other), optimizer_settings(theirs));
}

TEST(OptimizerState, LoadsFromTorchsOptimizerIntoOurs) {
  const Parameters parameters = two_parameters();
  torch_optim::AdamW theirs(parameters, torch_optim::AdamWOptions(0.1).weight_decay(0.3));
  train(theirs, parameters, 0, 3);
  const Parameters copies = {
      parameters[0].detach().clone().requires_grad_(),
      parameters[1].detach().clone().requires_grad_()};
  optim::AdamW ours(copies);
  check_optimizer(
      ours,
      namer(copies),
      optimizer_tensors(theirs, namer(parameters)),
      optimizer_settings(theirs),
      "test")();
  train(theirs, parameters, 3, 6);
  train(ours, copies, 3, 6);
  EXPECT_TRUE(at::allclose(copies[0], parameters[0]));
  EXPECT_TRUE(at::allclose(copies[1], parameters[1]));
}

TEST(OptimizerState, RefusesSettingsThatDoNotFit) {
  const Parameters parameters = two_parameters();
  optim::AdamW adamw(parameters, {.lr = 0.1});
  const nlohmann::json settings = optimizer_settings(adamw);
  const auto expect_refused = [&](const char* option, const nlohmann::json& value) {
    nlohmann::json wrong = settings;
    wrong["param_groups"][0]["lr"] = 0.7;
    wrong["param_groups"][0][option] = value;
    EXPECT_THROW(check_optimizer(adamw, namer(parameters), {}, wrong, "file"), CheckpointError);
    EXPECT_EQ(adamw.options().lr, 0.1);
  };
  expect_refused("unheard_of", 1);
  expect_refused("eps", "small");
  expect_refused("betas", {0.9});
  expect_refused("amsgrad", 1);
  EXPECT_THROW(check_optimizer(adamw, namer(parameters), {}, {}, "file"), CheckpointError);

  optim::Adafactor factor(parameters);
  train(factor, parameters, 0, 1);
  NamedTensors tensors = optimizer_tensors(factor, namer(parameters));
  ASSERT_EQ(tensors[0].name, "weight.row_var");
  EXPECT_EQ(tensors[0].tensor.sizes(), at::IntArrayRef({2, 1}));
  tensors[0].tensor = at::ones({2, 3});
  EXPECT_THROW(
      check_optimizer(factor, namer(parameters), tensors, optimizer_settings(factor), "file"),
      CheckpointError);
}

TEST(OptimizerState, NamesTheFileAtFault) {
  const Parameters parameters = two_parameters();
  optim::AdamW adamw(parameters, {.lr = 0.1});
  const auto path_in_error = [&](const NamedTensors& tensors, const nlohmann::json& settings) {
    try {
      check_optimizer(adamw, namer(parameters), tensors, settings, "o.safetensors", "o.json");
    } catch (const CheckpointError& error) {
      return error.path();
    }
    return std::string("accepted");
  };
  nlohmann::json wrong = optimizer_settings(adamw);
  wrong["param_groups"][0]["eps"] = "small";
  EXPECT_EQ(path_in_error({}, wrong), "o.json");
  const NamedTensors unknown = {{"nobody.exp_avg", at::ones({1})}};
  EXPECT_EQ(path_in_error(unknown, optimizer_settings(adamw)), "o.safetensors");
}

/// Returns the name of the tensor reported as missing; "accepted" if none is.
std::string missing_in(
    torch_optim::Optimizer& optimizer,
    const Parameters& parameters,
    const NamedTensors& tensors,
    const nlohmann::json& settings) {
  try {
    check_optimizer(optimizer, namer(parameters), tensors, settings, "file");
  } catch (const CheckpointError& error) {
    return error.tensor();
  }
  return "accepted";
}

TEST_P(OptimizerStateTest, RefusesStateOfWhichAPartIsMissing) {
  const Parameters parameters = two_parameters();
  const auto optimizer = GetParam().make(parameters);
  train(*optimizer, parameters, 0, 2);
  const NamedTensors all = optimizer_tensors(*optimizer, namer(parameters));
  const nlohmann::json settings = optimizer_settings(*optimizer);
  for (size_t cut = 0; cut < all.size(); ++cut) {
    NamedTensors some = all;
    some.erase(some.begin() + static_cast<std::ptrdiff_t>(cut));
    const std::string owner = all[cut].name.substr(0, all[cut].name.find('.'));
    const auto others = std::count_if(some.begin(), some.end(), [&](const NamedTensor& item) {
      return item.name.rfind(owner + ".", 0) == 0;
    });
    EXPECT_EQ(
        missing_in(*optimizer, parameters, some, settings),
        others > 0 ? all[cut].name : "accepted");
  }
  EXPECT_EQ(missing_in(*optimizer, parameters, {}, settings), "accepted") << "no step yet";
}

TEST_P(OptimizerStateTest, RefusesSettingsOfWhichAPartIsMissing) {
  const Parameters parameters = two_parameters();
  const auto optimizer = GetParam().make(parameters);
  const nlohmann::json settings = optimizer_settings(*optimizer);
  for (const auto& [option, value] : settings["param_groups"][0].items()) {
    nlohmann::json some = settings;
    some["param_groups"][0].erase(option);
    const auto check = [&, &kept = some] {
      check_optimizer(*optimizer, namer(parameters), {}, kept, "file");
    };
    if (option == "maximize" || option == "bias_correction" || option == "eps_inside_sqrt") {
      EXPECT_NO_THROW(check()) << "torch's have none";
    } else {
      EXPECT_THROW(check(), CheckpointError) << option;
    }
  }
}

/// State of a parameter of any shape, in place of a tensor of one element.
TEST(OptimizerState, KeepsNumbersOfAParameterAsTorchOptimDoes) {
  const Parameters parameters = two_parameters();
  optim::ASGD optimizer(parameters, {.lr = 0.5, .lambd = 1, .alpha = 1, .t0 = 0});
  train(optimizer, parameters, 0, 2);
  const NamedTensors tensors = optimizer_tensors(optimizer, namer(parameters));
  ASSERT_EQ(tensors.size(), 8U);
  EXPECT_EQ(tensors[1].name, "weight.eta");
  EXPECT_EQ(tensors[1].tensor.scalar_type(), at::kFloat);
  EXPECT_EQ(tensors[1].tensor.item<float>(), 0.25F) << "0.5 / (1 + 0.5 * 2), for the third step";
  EXPECT_EQ(tensors[2].name, "weight.mu");
  EXPECT_EQ(tensors[2].tensor.item<float>(), 0.5F);
  for (const NamedTensor& item : tensors) {
    EXPECT_EQ(is_scalar_state(item.name), !item.name.ends_with(".ax")) << item.name;
  }
}

TEST(OptimizerState, NeedsTheStateThatTheSavedOptionsNeed) {
  const Parameters parameters = two_parameters();
  optim::AdamW saved(parameters, {.amsgrad = true});
  train(saved, parameters, 0, 1);
  NamedTensors tensors = optimizer_tensors(saved, namer(parameters));
  ASSERT_EQ(tensors[2].name, "weight.max_exp_avg_sq");
  tensors.erase(tensors.begin() + 2);
  optim::AdamW plain(parameters);
  torch_optim::AdamW theirs(parameters);
  EXPECT_EQ(
      missing_in(plain, parameters, tensors, optimizer_settings(saved)), "weight.max_exp_avg_sq");
  nlohmann::json settings = optimizer_settings(saved);
  settings["param_groups"][0].erase("maximize");
  settings["param_groups"][0].erase("bias_correction");
  EXPECT_EQ(missing_in(theirs, parameters, tensors, settings), "weight.max_exp_avg_sq");
}

TEST(OptimizerState, IsCompleteIfAnOptionIsEnabledAfterAStep) {
  const Parameters parameters = two_parameters();
  optim::AdamW optimizer(parameters);
  train(optimizer, parameters, 0, 1);
  optimizer.options().amsgrad = true;
  const Parameters copies = {
      parameters[0].detach().clone().requires_grad_(),
      parameters[1].detach().clone().requires_grad_()};
  optim::AdamW fresh(copies);
  check_optimizer(
      fresh,
      namer(copies),
      optimizer_tensors(optimizer, namer(parameters)),
      optimizer_settings(optimizer),
      "file")();
  train(optimizer, parameters, 1, 3);
  train(fresh, copies, 1, 3);
  EXPECT_TRUE(at::equal(copies[0], parameters[0]));
}

TEST(OptimizerState, RefusesImpossibleHyperparameters) {
  const Parameters parameters = two_parameters();
  optim::AdamW adamw(parameters, {.lr = 0.1});
  nlohmann::json settings = optimizer_settings(adamw);
  settings["param_groups"][0]["lr"] = -1.0;
  try {
    check_optimizer(adamw, namer(parameters), {}, settings, "file");
    FAIL() << "expected a CheckpointError";
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.path(), "file");
    EXPECT_THAT(error.what(), ::testing::HasSubstr("invalid lr; got -1"));
  }
  EXPECT_EQ(adamw.options().lr, 0.1);
}

TEST(OptimizerState, IncludesAGroupAddedByTorchsCall) {
  const Parameters parameters = two_parameters();
  optim::Adagrad optimizer({parameters[0]});
  optimizer.add_param_group(torch_optim::OptimizerParamGroup({parameters[1]}));
  const NamedTensors tensors = optimizer_tensors(optimizer, namer(parameters));
  EXPECT_EQ(tensors.size(), 4U) << "its state exists before any step";

  optim::Adagrad other({parameters[0]});
  other.add_param_group(torch_optim::OptimizerParamGroup({parameters[1]}));
  EXPECT_NO_THROW(
      check_optimizer(other, namer(parameters), tensors, optimizer_settings(optimizer), "file")());
}

TEST(OptimizerState, RefusesAnOptimizerItCannotKeep) {
  const Parameters parameters = two_parameters();
  torch_optim::LBFGS lbfgs(parameters, torch_optim::LBFGSOptions(0.1));
  EXPECT_THROW(optimizer_tensors(lbfgs, namer(parameters)), ConfigError);
}

}  // namespace
}  // namespace lockstep
