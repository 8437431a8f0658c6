// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/optimizer_state.h"

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

namespace lockstep {
namespace {

namespace optim = torch::optim;
using Parameters = std::vector<at::Tensor>;

struct Case {
  const char* name;
  std::function<std::unique_ptr<optim::Optimizer>(const Parameters&)> make;
};

class OptimizerStateTest : public ::testing::TestWithParam<Case> {};

template <typename Type, typename Options>
Case make_case(const char* name, Options options) {
  return {name, [options](const Parameters& parameters) {
            return std::make_unique<Type>(parameters, options);
          }};
}

INSTANTIATE_TEST_SUITE_P(
    Kinds,
    OptimizerStateTest,
    ::testing::Values(
        make_case<optim::SGD>("SGD", optim::SGDOptions(0.1).momentum(0.9)),
        make_case<optim::Adam>("Adam", optim::AdamOptions(0.1).amsgrad(true)),
        make_case<optim::AdamW>("AdamW", optim::AdamWOptions(0.1)),
        make_case<optim::Adagrad>("Adagrad", optim::AdagradOptions(0.1)),
        make_case<optim::RMSprop>(
            "RMSprop", optim::RMSpropOptions(0.1).momentum(0.5).centered(true))),
    [](const auto& test) { return test.param.name; });

Parameters make_parameters() {
  return {
      at::linspace(-1, 1, 6).reshape({2, 3}).clone().requires_grad_(),
      at::linspace(2, 3, 4).clone().requires_grad_()};
}

void train(optim::Optimizer& optimizer, const Parameters& parameters, int from, int to) {
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

TEST_P(OptimizerStateTest, a_restored_optimizer_goes_on_to_the_bit) {
  const Parameters whole = make_parameters();
  const auto unbroken = GetParam().make(whole);
  train(*unbroken, whole, 0, 10);

  const Parameters first = make_parameters();
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
  EXPECT_TRUE(at::equal(second[0], whole[0]));
  EXPECT_TRUE(at::equal(second[1], whole[1]));
}

TEST_P(OptimizerStateTest, names_state_by_parameter) {
  const Parameters parameters = make_parameters();
  const auto optimizer = GetParam().make(parameters);
  EXPECT_LE(optimizer_tensors(*optimizer, namer(parameters)).size(), 4U)
      << "no step yet: only Adagrad has state";
  train(*optimizer, parameters, 0, 1);
  for (const NamedTensor& item : optimizer_tensors(*optimizer, namer(parameters))) {
    EXPECT_THAT(item.name, ::testing::MatchesRegex("(weight|bias)\\.[a-z_]+"));
  }
  EXPECT_EQ(optimizer_settings(*optimizer)["type"], GetParam().name);
}

TEST(OptimizerState, refuses_what_does_not_fit_and_changes_nothing) {
  const Parameters parameters = make_parameters();
  optim::Adam adam(parameters, optim::AdamOptions(0.1));
  train(adam, parameters, 0, 2);
  const NamedTensors tensors = optimizer_tensors(adam, namer(parameters));
  const nlohmann::json settings = optimizer_settings(adam);

  optim::SGD sgd(parameters, optim::SGDOptions(0.1));
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
  more_groups["lr"].push_back(0.5);
  EXPECT_THROW(
      check_optimizer(adam, namer(parameters), tensors, more_groups, "file"), CheckpointError);
  EXPECT_TRUE(at::equal(optimizer_tensors(adam, namer(parameters))[0].tensor, tensors[0].tensor));
}

TEST(OptimizerState, refuses_an_optimizer_it_cannot_keep) {
  const Parameters parameters = make_parameters();
  optim::LBFGS lbfgs(parameters, optim::LBFGSOptions(0.1));
  EXPECT_THROW(optimizer_tensors(lbfgs, namer(parameters)), ConfigError);
}

}  // namespace
}  // namespace lockstep
