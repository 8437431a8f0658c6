// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/parameters_once.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Functions.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"

namespace lockstep::optim {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(ParametersOnce, ATiedWeightTakesOneUpdateAStep) {
  at::Tensor tied = at::ones({2}).requires_grad_();
  at::Tensor other = at::ones({3}).requires_grad_();
  torch::optim::SGD optimizer({tied, other, tied}, torch::optim::SGDOptions(0.5));
  list_parameters_once(optimizer);
  ASSERT_EQ(optimizer.param_groups()[0].params().size(), 2);
  EXPECT_TRUE(optimizer.param_groups()[0].params()[0].is_same(tied));
  EXPECT_TRUE(optimizer.param_groups()[0].params()[1].is_same(other));
  tied.mutable_grad() = at::ones({2});
  optimizer.step();
  EXPECT_TRUE(at::equal(tied, at::full({2}, 0.5)));
}

TEST(ParametersOnce, AParameterInTwoGroupsIsAnErrorThatNamesBoth) {
  at::Tensor tied = at::ones({2, 3}).requires_grad_();
  torch::optim::SGD optimizer(
      std::vector<torch::optim::OptimizerParamGroup>{
          torch::optim::OptimizerParamGroup({tied}), torch::optim::OptimizerParamGroup({tied})},
      torch::optim::SGDOptions(0.5));
  EXPECT_THAT(
      [&] { list_parameters_once(optimizer); },
      ThrowsMessage<ConfigError>(HasSubstr("shape [2, 3] is in parameter groups 0 and 1")));
}

}  // namespace
}  // namespace lockstep::optim
