// SPDX-License-Identifier: Apache-2.0
// Models that were not passed to prepare, alone and beside one that was.
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/test_loops.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"

namespace lockstep::internal {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;
using torch::nn::Linear;

TEST(NothingPrepared, BackwardOfSeveralProcessesIsRefusedAndOfOneIsNot) {
  const auto backward = [](Accelerator& accelerator) {
    accelerator.backward(loss_of(two_by_two(), rows_of(accelerator)));
  };
  accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
    EXPECT_THAT(
        [&] { backward(accelerator); },
        ThrowsMessage<ConfigError>(AllOf(
            HasSubstr("no model is prepared in a job of 2 processes"),
            HasSubstr("prepare(model, optimizer, ...)"))));
  });
  Accelerator alone({}, WorldSpec{}, Group());
  EXPECT_NO_THROW(backward(alone));
}

TEST(ModelNotPrepared, IsRefusedByItsOptimizerUnlessTheProgramAverages) {
  accelerated_ranks(2, {}, [](Accelerator& accelerator) {
    Linear net = two_by_two();
    auto optimizer = accelerator.prepare(torch::optim::SGD(net->parameters(), 0.1));
    accelerator.backward(loss_of(net, rows_of(accelerator)));
    EXPECT_THAT(
        [&] { optimizer.step(); },
        ThrowsMessage<ConfigError>(HasSubstr("2 parameters belong to no prepared model")));
    accelerator.wait_for_everyone();
    for (at::Tensor& parameter : net->parameters()) {
      parameter.mutable_grad() = accelerator.reduce(parameter.grad(), ReduceOp::kAvg);
    }
    optimizer.step();
    EXPECT_TRUE(is_same_on_all(accelerator, net->weight));
  });
}

TEST(ModelNotPrepared, WhileAnotherIsMakesItsOptimizersFirstStepAnError) {
  accelerated_ranks(2, {}, [](Accelerator& accelerator) {
    Linear generator = two_by_two(), critic = two_by_two();
    auto [model, optimizer, critics] = accelerator.prepare(
        generator,
        torch::optim::SGD(generator->parameters(), 0.1),
        torch::optim::SGD(critic->parameters(), 0.1));
    accelerator.backward(loss_of(critic, model->forward(rows_of(accelerator))));
    optimizer.step();
    EXPECT_THAT(
        [&critics = critics] { critics.step(); },
        ThrowsMessage<ConfigError>(AllOf(
            HasSubstr("2 of this optimizer's 2 parameters belong to no prepared model"),
            HasSubstr("pass their model to prepare"))));
    accelerator.wait_for_everyone();
  });
}

/// The warnings of a loop that trains a prepared model, and beside it one that nobody told of;
/// `average` is called with that one before its step.
std::vector<std::string> warnings_of_second_model(
    const std::function<void(Accelerator&, Linear)>& average) {
  std::mutex mutex;
  std::vector<std::string> warnings;
  set_log_sink([&](const std::string& line) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (line.find("belong to no prepared model") != std::string::npos) {
      warnings.push_back(line);
    }
  });
  accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
    Linear net = two_by_two(), head = two_by_two();
    torch::optim::SGD heads(head->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    for (int step = 0; step < 6; ++step) {
      optimizer.zero_grad();
      heads.zero_grad();
      // A batch with a gradient of its own is no parameter.
      const at::Tensor batch = rows_of(accelerator).detach().requires_grad_();
      accelerator.backward(loss_of(head, model->forward(batch)));
      average(accelerator, head);
      optimizer.step();
      heads.step();
    }
  });
  set_log_sink({});
  return warnings;
}

TEST(ModelNotPrepared, WithAnUnpreparedOptimizerTheErrorSaysThatRanksTrainApart) {
  EXPECT_THAT(
      warnings_of_second_model([](Accelerator&, Linear) {}),
      ElementsAre(AllOf(
          HasSubstr("2 trained parameters (first: shape ["),
          HasSubstr("belong to no prepared model and differ between processes"),
          HasSubstr("pass their model and optimizer to prepare"))));
  EXPECT_THAT(
      warnings_of_second_model([](Accelerator& accelerator, Linear head) {
        for (at::Tensor& parameter : head->parameters()) {
          parameter.mutable_grad() = accelerator.reduce(parameter.grad(), ReduceOp::kAvg);
        }
      }),
      IsEmpty());
}

TEST(ModelNotPrepared, IsAllowedIfTheProgramAveragesItsGradients) {
  accelerated_ranks(2, {}, [](Accelerator& accelerator) {
    Linear net = two_by_two();
    at::Tensor temperature = at::zeros({1}).requires_grad_();
    auto [model, optimizer, temperatures] = accelerator.prepare(
        net,
        torch::optim::SGD(net->parameters(), 0.1),
        torch::optim::SGD(std::vector<at::Tensor>{temperature}, 0.1));
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      temperatures.zero_grad();
      accelerator.backward(loss_of(model, rows_of(accelerator)) * temperature.exp().sum());
      temperature.mutable_grad() = accelerator.reduce(temperature.grad(), ReduceOp::kAvg);
      optimizer.step();
      temperatures.step();
    }
    EXPECT_NE(temperature.item<float>(), 0);
    EXPECT_TRUE(is_same_on_all(accelerator, temperature));
  });
}

TEST(ModelNotPrepared, ThatIsFrozenMayDifferBetweenProcesses) {
  accelerated_ranks(2, {}, [](Accelerator& accelerator) {
    Linear net = two_by_two(), frozen = two_by_two();
    for (at::Tensor& parameter : frozen->parameters()) {
      parameter.requires_grad_(false).add_(accelerator.process_index());
    }
    std::vector<at::Tensor> both = net->parameters();
    for (const at::Tensor& parameter : frozen->parameters()) {
      both.push_back(parameter);
    }
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(both, 0.1));
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      accelerator.backward(loss_of(frozen, model->forward(rows_of(accelerator))));
      optimizer.step();
    }
    EXPECT_TRUE(is_same_on_all(accelerator, net->weight));
  });
}

}  // namespace
}  // namespace lockstep::internal
