// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor_parallel/tensor_parallel.h"

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include <ATen/Functions.h>
#include <c10/util/accumulate.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/tensor/divided_mark.h"
#include "lockstep/comm/thread/ranks.h"
#include "lockstep/tensor_parallel/test_gpt.h"

namespace lockstep::tensor_parallel {
namespace {

using test_gpt::Gpt;
using testing::HasSubstr;

at::Tensor tokens(uint64_t seed = 7) {
  return at::randint(
      test_gpt::kWords, {3, test_gpt::kPositions}, at::detail::createCPUGenerator(seed), at::kLong);
}

at::Tensor loss_of(Gpt& model, const at::Tensor& batch) {
  const at::Tensor logits = model(batch).narrow(1, 0, batch.size(1) - 1);
  const at::Tensor next = batch.narrow(1, 1, batch.size(1) - 1);
  return at::cross_entropy_loss(logits.flatten(0, 1), next.flatten());
}

/// Returns the same model on every rank and in one process.
Gpt make_model(bool tied = false, at::ScalarType dtype = at::kDouble) {
  static std::mutex drawing;  // torch's default generator is the process's.
  const std::lock_guard lock(drawing);
  torch::manual_seed(3);
  Gpt model(tied);
  model->to(dtype);
  return model;
}

struct Trained {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> gradients;  ///< Of the first step.
  std::map<std::string, at::Tensor> weights;    ///< After the last step.
};

/// Trains for `steps`; `divided` is null in one process.
Trained train(Gpt& model, TensorParallel* divided, int steps) {
  const auto full = [&](const at::Tensor& parameter, const at::Tensor& own) {
    return (divided == nullptr ? own : divided->full(parameter, own)).detach().clone();
  };
  Trained result;
  // Not Adam: it divides k's bias, whose gradient is 0 but for rounding, by that rounding.
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = loss_of(model, tokens(static_cast<uint64_t>(step)));
    loss.backward();
    result.losses.push_back(loss.item<double>());
    for (const auto& item : model->named_parameters()) {
      if (step == 0) {
        result.gradients[item.key()] = full(item.value(), item.value().grad());
      }
    }
    optimizer.step();
  }
  const torch::NoGradGuard no_grad;
  for (const auto& item : model->named_parameters()) {
    result.weights[item.key()] = full(item.value(), item.value());
  }
  return result;
}

void expect_equal(const Trained& got, const Trained& expected, double tolerance) {
  ASSERT_EQ(got.losses.size(), expected.losses.size());
  for (size_t i = 0; i < got.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], expected.losses[i], tolerance) << "step " << i;
  }
  for (const auto& [name, value] : expected.gradients) {
    EXPECT_LE((got.gradients.at(name) - value).abs().max().item<double>(), tolerance) << name;
  }
  for (const auto& [name, value] : expected.weights) {
    EXPECT_LE((got.weights.at(name) - value).abs().max().item<double>(), tolerance) << name;
  }
}

struct Case {
  int world;
  bool sequence_parallel;
  bool tied;
  at::ScalarType dtype = at::kDouble;
  double tolerance = 1e-12;
};

class DividedGpt : public testing::TestWithParam<Case> {};

TEST_P(DividedGpt, TrainsAsOneProcessDoes) {
  const Case& given = GetParam();
  constexpr int kSteps = 20;
  Gpt alone = make_model(given.tied, given.dtype);
  const Trained expected = train(alone, nullptr, kSteps);
  ranks(given.world, [&](const Group& group) {
    Gpt model = make_model(given.tied, given.dtype);
    TensorParallel divided(
        test_gpt::parameters_of(*model),
        test_gpt::classes_of(*model),
        {.plan = given.sequence_parallel ? test_gpt::sequence_plan(given.tied)
                                         : test_gpt::plan(given.tied),
         .sequence_parallel = given.sequence_parallel},
        group);
    EXPECT_EQ(model->words->weight.size(0), test_gpt::kWords / given.world);
    expect_equal(train(model, &divided, kSteps), expected, given.tolerance);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Ranks,
    DividedGpt,
    testing::Values(
        Case{2, false, false},
        Case{4, false, false},
        Case{2, true, false},
        Case{4, true, false},
        Case{2, false, true},
        Case{2, true, true},
        Case{2, false, false, at::kFloat, 1e-4},
        Case{2, true, false, at::kFloat, 1e-4}));

/// Returns the largest difference of the gradients of one process and of two ranks, if `corrupt`
/// changes the plan.
double difference(const std::function<void(TensorPlan&)>& corrupt) {
  Gpt alone = make_model();
  const Trained expected = train(alone, nullptr, 1);
  double largest = 0;
  ranks(2, [&](const Group& group) {
    Gpt model = make_model();
    TensorPlan plan = test_gpt::plan();
    corrupt(plan);
    TensorParallel divided(
        test_gpt::parameters_of(*model), test_gpt::classes_of(*model), {.plan = plan}, group);
    const Trained got = train(model, &divided, 1);
    double own = 0;
    for (const auto& [name, value] : expected.gradients) {
      own = std::max(own, (got.gradients.at(name) - value).abs().max().item<double>());
    }
    if (group.rank() == 0) {
      largest = own;
    }
  });
  return largest;
}

TEST(TensorParallel, TheComparisonSeesAnotherFunction) {
  EXPECT_LE(difference([](TensorPlan& /*plan*/) {}), 1e-12);
  // Without the blocks of q, k and v a rank would take q and half of k for its heads.
  EXPECT_GE(difference([](TensorPlan& plan) { plan[1].fused.clear(); }), 1e-3);
}

/// Returns the error of dividing the model on a rank by `plan`.
std::string error_of(const TensorPlan& plan, bool sequence_parallel = false) {
  std::string text = "no error";
  ranks(2, [&](const Group& group) {
    Gpt model = make_model();
    try {
      const TensorParallel divided(
          test_gpt::parameters_of(*model),
          test_gpt::classes_of(*model),
          {.plan = plan, .sequence_parallel = sequence_parallel},
          group);
    } catch (const ConfigError& error) {
      if (group.rank() == 0) {
        text = error.what();
      }
    }
  });
  return text;
}

TEST(TensorParallel, PlansThatDoNotFitAreRefused) {
  EXPECT_THAT(
      error_of({{"blocks.*.qvk", TensorStyle::kColwise}}),
      HasSubstr("no module of the model matches the pattern 'blocks.*.qvk'"));
  EXPECT_THAT(
      error_of({{"norm", TensorStyle::kColwise}}),
      HasSubstr("gives norm the style colwise, but it is a torch::nn::LayerNormImpl; expected a "
                "Linear"));
  EXPECT_THAT(
      error_of({{"head", TensorStyle::kColwise}, {"head", TensorStyle::kRowwise}}),
      HasSubstr("two rules of the plan match head"));
  EXPECT_THAT(
      error_of({{"head", TensorStyle::kColwiseGather, {1, 1}}}),
      HasSubstr("the style colwise_gather and 2 fused layers, whose parts would be joined"));
  EXPECT_THAT(
      error_of(test_gpt::plan(), /*sequence_parallel=*/true),
      HasSubstr("no rule of the plan is about the parameter positions.weight"));
  EXPECT_THAT(
      error_of(test_gpt::sequence_plan()),
      HasSubstr("gives positions the style sequence, but sequence_parallel is off"));
}

TEST(TensorParallel, FixedHeadsAreRefused) {
  ranks(2, [](const Group& group) {
    torch::nn::MultiheadAttention attention(
        torch::nn::MultiheadAttentionOptions(/*embed_dim=*/8, /*num_heads=*/2));
    EXPECT_THROW(
        TensorParallel(
            test_gpt::parameters_of(*attention),
            test_gpt::classes_of(*attention),
            {.plan = {{"out_proj", TensorStyle::kRowwise}}},
            group),
        ConfigError);
  });
}

TEST(TensorParallel, OtherUsesOfADividedWeightAreErrors) {
  ranks(2, [](const Group& group) {
    torch::nn::Sequential model(torch::nn::Linear(4, 4));
    const at::Tensor weight = model[0]->as<torch::nn::Linear>()->weight;
    {
      const TensorParallel divided(
          test_gpt::parameters_of(*model),
          test_gpt::classes_of(*model),
          {.plan = {{"0", TensorStyle::kColwiseGather}}},
          group);
      EXPECT_THROW((weight * 2).sum(), ConfigError);
      EXPECT_THROW(at::matmul(at::ones({2, 2}), weight), ConfigError);
      EXPECT_THROW(at::linear(weight, weight), ConfigError);
      EXPECT_THROW(at::embedding(weight.narrow(0, 1, 1), at::zeros({1}, at::kLong)), ConfigError);
      {
        const torch::NoGradGuard no_grad;
        EXPECT_EQ((weight * 2).size(0), 2);
        weight.mul_(2);  // An update.
      }
      EXPECT_EQ(model->forward(at::ones({3, 4})).size(1), 4);
      divided.expect_marked();
      EXPECT_THROW(model->to(at::kDouble), ConfigError);
      weight.set_data(at::ones({2, 4}));
      EXPECT_THROW(divided.expect_marked(), ConfigError);
    }
    // It is a part forever, though this one was replaced by hand above.
    EXPECT_FALSE(comm::is_divided(weight));
  });
}

TEST(TensorParallel, ModulesThatComputeWithTheirPartsGetRowsAndColumns) {
  const auto full = [](at::IntArrayRef sizes) {
    return at::arange(c10::multiply_integers(sizes), at::kDouble).view(sizes);
  };
  ranks(2, [&](const Group& group) {
    NamedTensors parameters;
    for (const auto& [name, sizes] : std::vector<std::pair<std::string, std::vector<int64_t>>>{
             {"up.weight", {6, 4}},
             {"up.bias", {6}},
             {"down.weight", {4, 6}},
             {"down.bias", {4}}}) {
      parameters.push_back({name, full(sizes).requires_grad_()});
    }
    TensorParallel divided(
        parameters,
        {{"up", "Own"}, {"down", "Own"}},
        {.plan = {{"up", TensorStyle::kOwnRows}, {"down", TensorStyle::kOwnColumns}},
         .without_example = true},
        group);
    const int64_t begin = 3 * group.rank();
    EXPECT_TRUE(at::equal(parameters[0].tensor, full({6, 4}).narrow(0, begin, 3)));
    EXPECT_TRUE(at::equal(parameters[1].tensor, full({6}).narrow(0, begin, 3)));
    EXPECT_TRUE(at::equal(parameters[2].tensor, full({4, 6}).narrow(1, begin, 3)));
    EXPECT_TRUE(at::equal(parameters[3].tensor, full({4})));
    // Nothing communicates: the module does.
    const at::Tensor hidden =
        at::linear(at::ones({1, 4}, at::kDouble), parameters[0].tensor, parameters[1].tensor);
    at::linear(hidden, parameters[2].tensor).sum().backward();
    divided.expect_marked();
    for (const NamedTensor& item : parameters) {
      EXPECT_TRUE(at::equal(
          divided.full(item.tensor, item.tensor.detach()), full(divided.full_sizes(item.tensor))))
          << item.name;
    }
  });
}

TEST(TensorParallel, EvaluationWithoutGradientsIsTheSame) {
  Gpt alone = make_model();
  const torch::NoGradGuard no_grad_here;
  const at::Tensor expected = alone(tokens());
  ranks(2, [&](const Group& group) {
    const torch::NoGradGuard no_grad;
    Gpt model = make_model();
    const TensorParallel divided(
        test_gpt::parameters_of(*model),
        test_gpt::classes_of(*model),
        {.plan = test_gpt::sequence_plan(), .sequence_parallel = true},
        group);
    EXPECT_LE((model(tokens()) - expected).abs().max().item<double>(), 1e-12);
  });
}

}  // namespace
}  // namespace lockstep::tensor_parallel
