// SPDX-License-Identifier: Apache-2.0
// Optimizers of a class of the program's own.
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "lockstep/accelerator/local_sgd/local_sgd.h"
#include "lockstep/accelerator/test_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::nn::Linear;

/// Heavy-ball momentum of the program's own, which counts its steps.
class HeavyBall : public torch::optim::Optimizer {
 public:
  explicit HeavyBall(std::vector<at::Tensor> parameters, double lr = 0.1)
      : Optimizer(
            {torch::optim::OptimizerParamGroup(std::move(parameters))},
            std::make_unique<torch::optim::SGDOptions>(lr)) {}

  at::Tensor step(LossClosure /*unused*/ = nullptr) override {
    const torch::NoGradGuard no_grad;
    std::vector<at::Tensor>& parameters = param_groups_[0].params();
    momenta_.resize(parameters.size());
    for (size_t i = 0; i < parameters.size(); ++i) {
      at::Tensor& momentum = momenta_[i];
      momentum =
          momentum.defined() ? momentum * 0.9 + parameters[i].grad() : parameters[i].grad().clone();
      parameters[i].sub_(momentum * param_groups_[0].options().get_lr());
    }
    ++count_;
    return {};
  }

 protected:
  std::vector<at::Tensor> momenta_;
  int64_t count_ = 0;
};

/// The same, which can be saved.
class SavedHeavyBall : public HeavyBall {
 public:
  using HeavyBall::HeavyBall;
  ObjectState state_dict() const {
    ObjectState state(nlohmann::json{{"count", count_}});
    for (size_t i = 0; i < momenta_.size(); ++i) {
      state.tensors.push_back({"momentum." + std::to_string(i), momenta_[i]});
    }
    return state;
  }
  void load_state_dict(const ObjectState& state) {
    count_ = state.values.at("count").get<int64_t>();
    momenta_.clear();
    for (const NamedTensor& item : state.tensors) {
      momenta_.push_back(item.tensor.clone());
    }
  }
};

TEST(OwnOptimizer, WithStateDictResumesBitExactly) {
  for (const bool pointer : {false, true}) {
    const TestFolder folder;
    const auto train = [&](Accelerator& accelerator, bool resumes) {
      torch::manual_seed(1);
      Linear net(3, 2);
      SavedHeavyBall own(net->parameters());
      Optimizer optimizer = pointer ? std::get<1>(accelerator.prepare(
                                          net, std::make_shared<SavedHeavyBall>(net->parameters())))
                                    : std::get<1>(accelerator.prepare(net, own));
      if (resumes) {
        EXPECT_TRUE(accelerator.resume_latest());
        EXPECT_EQ(optimizer.steps(), 3);
      }
      while (optimizer.steps() < 6) {
        accelerator.backward(net->forward(at::ones({1, 3}) * optimizer.steps()).square().sum());
        optimizer.step();
        optimizer.zero_grad();
        if (!resumes && optimizer.steps() == 3) {
          accelerator.save_state();
        }
      }
      return net->weight.detach().clone();
    };
    std::vector<at::Tensor> unbroken(2);
    for (const bool resumes : {false, true}) {
      accelerated_ranks(2, {.project_dir = folder.path()}, [&](Accelerator& accelerator) {
        const at::Tensor weight = train(accelerator, resumes);
        at::Tensor& expected = unbroken.at(static_cast<size_t>(accelerator.process_index()));
        if (resumes) {
          EXPECT_TRUE(at::equal(weight, expected));
        }
        expected = weight;
      });
    }
  }
}

TEST(OwnOptimizer, WithoutStateDictIsRefusedBeforeTrainingWhereItWouldBeSaved) {
  const TestFolder folder;
  accelerated_ranks(2, {.project_dir = folder.path()}, [&](Accelerator& accelerator) {
    Linear net(3, 2);
    EXPECT_THAT(
        [&] { accelerator.prepare(net, HeavyBall(net->parameters())); },
        ThrowsMessage<ConfigError>(AllOf(
            HasSubstr("the state of this optimizer cannot be read"),
            HasSubstr("give your class state_dict() and load_state_dict()"))));
  });
  accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
    Linear net(3, 2);
    auto optimizer = std::get<1>(accelerator.prepare(net, HeavyBall(net->parameters())));
    accelerator.backward(net->forward(at::ones({1, 3})).sum());
    optimizer.step();
    EXPECT_EQ(optimizer.steps(), 1) << "it trains where nothing is to be saved";
  });
}

TEST(OwnOptimizer, RefusesTheStateOfAnotherKind) {
  const TestFolder folder;
  const auto with = [&](auto make, const std::function<void(Accelerator&)>& then) {
    accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
      Linear net(3, 2);
      accelerator.prepare(net, make(net->parameters()));
      then(accelerator);
    });
  };
  const auto own = [](std::vector<at::Tensor> all) { return SavedHeavyBall(std::move(all)); };
  const auto adam = [](std::vector<at::Tensor> all) {
    return torch::optim::Adam(std::move(all), torch::optim::AdamOptions(0.1));
  };
  with(own, [&](Accelerator& accelerator) { accelerator.save_state(folder / "own"); });
  with(adam, [&](Accelerator& accelerator) {
    accelerator.save_state(folder / "adam");
    EXPECT_THAT(
        [&] { accelerator.load_state(folder / "own"); },
        ThrowsMessage<CheckpointError>(
            HasSubstr("holds the state of \"custom\"; this program's optimizer is Adam")));
  });
  with(own, [&](Accelerator& accelerator) {
    EXPECT_THAT(
        [&] { accelerator.load_state(folder / "adam"); },
        ThrowsMessage<CheckpointError>(
            HasSubstr("holds the state of \"Adam\"; this program's optimizer has its own "
                      "state_dict()")));
  });
}

/// What the momentum has become: another step, in which the gradient is 0.
at::Tensor momentum_of(Linear net, Optimizer& optimizer) {
  const at::Tensor before = net->weight.detach().clone();
  optimizer.zero_grad();
  for (at::Tensor& parameter : net->parameters()) {
    parameter.mutable_grad() = at::zeros_like(parameter);
  }
  optimizer.step();
  return net->weight.detach() - before;
}

TEST(OwnOptimizer, HasEqualStatesAfterProcessesTrainedApart) {
  for (const bool local : {false, true}) {
    accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
      torch::manual_seed(1);
      Linear net(3, 2);
      SavedHeavyBall own(net->parameters());
      auto optimizer = std::get<1>(accelerator.prepare(net, own));
      const auto update = [&] {
        optimizer.zero_grad();
        accelerator.backward(
            net->forward(at::ones({1, 3}) * (1 + accelerator.process_index())).square().sum());
        optimizer.step();
      };
      if (local) {
        LocalSgd local_sgd(accelerator, net, {.local_sgd_steps = 2});
        for (int i = 0; i < 3; ++i) {
          update();
          local_sgd.step();
        }
        local_sgd.finish();
      } else {
        accelerator.join_uneven_inputs([&] {
          for (int i = 0; i < 1 + 2 * accelerator.process_index(); ++i) {
            update();
          }
        });
      }
      EXPECT_EQ(optimizer.steps(), 3);
      const at::Tensor all = accelerator.gather(momentum_of(net, optimizer).flatten());
      EXPECT_TRUE(at::equal(all.slice(0, 0, 6), all.slice(0, 6, 12)));
      EXPECT_GT(all.abs().sum().item<double>(), 0);
    });
  }
}

TEST(OwnOptimizer, ThatCouldNotBeMadeEqualIsRefusedBeforeTraining) {
  accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
    Linear net(3, 2);
    accelerator.prepare(net, HeavyBall(net->parameters()));
    EXPECT_THAT(
        [&] { accelerator.join_uneven_inputs([] {}); },
        ThrowsMessage<ConfigError>(
            HasSubstr("all processes get the state of one process's optimizer")));
    EXPECT_THAT(
        [&] { LocalSgd(accelerator, net, {}); },
        ThrowsMessage<ConfigError>(HasSubstr("the state of this optimizer cannot be read")));
  });
  accelerated_ranks(2, {}, [&](Accelerator& accelerator) {
    Linear net(3, 2);
    SavedHeavyBall own(net->parameters());
    accelerator.prepare(net, own);
    EXPECT_THAT(
        [&] { LocalSgd(accelerator, net, {.optimizer_state = LocalOptimizerState::kAverage}); },
        ThrowsMessage<ConfigError>(HasSubstr("use LocalOptimizerState::kKeep")));
  });
}

}  // namespace
}  // namespace lockstep
