// SPDX-License-Identifier: Apache-2.0
// Loops with fp16 whose optimizer is not the prepared one are refused; correct ones are not.
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/test_loops.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/optim/rules/adam.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::nn::Linear;

/// Two backward passes with fp16, each with a step() of `opt`, and the error of a third one.
template <typename Inner>
void expect_refused_with_fp16(
    Accelerator& accelerator, Linear net, Inner& opt, const std::string& remedy) {
  for (int step = 0; step < 2; ++step) {
    accelerator.backward(loss_of(net, rows_of(accelerator)));
    opt.step();
    opt.zero_grad();
  }
  EXPECT_THAT(
      [&] { accelerator.backward(loss_of(net, rows_of(accelerator))); },
      ThrowsMessage<ConfigError>(
          AllOf(HasSubstr("was unscaled (fp16 loss scale 1024)"), HasSubstr(remedy))));
  accelerator.wait_for_everyone();
}

TEST(LossScale, MakesTheStepOfAnOptimizerThatPrepareDidNotReturnAnError) {
  for (const int size : {1, 2}) {
    const AcceleratorOptions options{
        .mixed_precision = Precision::kFP16, .grad_scaler = {.init_scale = 1024}};
    accelerated_ranks(size, options, [](Accelerator& accelerator) {
      Linear net = two_by_two();
      auto opt = std::make_shared<torch::optim::Adam>(net->parameters());
      auto [model, optimizer] = accelerator.prepare(net, opt);
      expect_refused_with_fp16(
          accelerator,
          net,
          *opt,
          "call step() of the optimizer that prepare returned, and move code that writes");
    });
    accelerated_ranks(size, options, [](Accelerator& accelerator) {
      Linear net = two_by_two();
      optim::AdamW opt(net->parameters(), {.lr = 0.1});
      accelerator.prepare(net);
      expect_refused_with_fp16(accelerator, net, opt, "pass the parameter's optimizer to prepare");
    });
  }
}

TEST(LossScale, AllowsWritesOfTheProgramAfterThePreparedStep) {
  accelerated_ranks(
      2,
      {.mixed_precision = Precision::kFP16, .gradient_accumulation_steps = 2},
      [](Accelerator& accelerator) {
        Linear net = two_by_two(), other = two_by_two();
        auto [model, critic, optimizer, critics] = accelerator.prepare(
            net,
            other,
            torch::optim::SGD(net->parameters(), 0.1),
            torch::optim::SGD(other->parameters(), 0.1));
        for (int step = 0; step < 6; ++step) {
          auto scope = accelerator.accumulate(net, other);
          accelerator.backward(loss_of(critic, rows_of(accelerator)));
          critics.step();
          critics.zero_grad();
          if (accelerator.sync_gradients()) {
            const torch::NoGradGuard no_grad;
            other->weight.clamp_(-0.3, 0.3);
          }
          accelerator.backward(loss_of(model, rows_of(accelerator)));
          optimizer.step();
          optimizer.zero_grad();
        }
        EXPECT_TRUE(is_same_on_all(accelerator, net->weight));
        EXPECT_TRUE(is_same_on_all(accelerator, other->weight));
      });
}

TEST(LossScale, MayBeReadAndSavedAfterAnyStep) {
  const TestFolder folder;
  accelerated_ranks(2, {.mixed_precision = Precision::kFP16}, [&](Accelerator& accelerator) {
    Linear net = two_by_two();
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    for (int step = 0; step < 6; ++step) {
      accelerator.backward(loss_of(net, rows_of(accelerator)));
      optimizer.step();
      optimizer.zero_grad();
      accelerator.save_state(folder.path() / std::to_string(step));
      EXPECT_GT(accelerator.scaler()->get_scale(), 0);
    }
    EXPECT_EQ(optimizer.steps(), 6);
  });
}

}  // namespace
}  // namespace lockstep
