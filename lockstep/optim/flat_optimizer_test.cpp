// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/flat_optimizer.h"

#include <array>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/optim/adamw.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/optim/rules/adafactor.h"
#include "lockstep/optim/rules/adagrad.h"
#include "lockstep/optim/rules/adam.h"
#include "lockstep/optim/rules/lamb.h"
#include "lockstep/optim/rules/lion.h"
#include "lockstep/optim/rules/rmsprop.h"
#include "lockstep/optim/rules/sgd.h"
#include "lockstep/optim/test_parameters.h"

namespace lockstep::optim {
namespace {

bool share_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.storage().is_alias_of(b.storage());
}

void expect_close(const Parameters& a, const Parameters& b) {
  for (size_t k = 0; k < a.size(); ++k) {
    EXPECT_TRUE(at::allclose(a[k], b[k], 1e-5, 1e-6)) << "parameter " << k;
  }
}

/// `steps` steps of AdamW without anything unusual.
Parameters reference(int64_t steps, AdamWOptions options = {}) {
  Parameters parameters = make_parameters();
  AdamW optimizer(parameters, options);
  for (int64_t t = 0; t < steps; ++t) {
    put_gradients(parameters, t);
    optimizer.step();
  }
  return parameters;
}

TEST(FlatOptimizer, LaysParametersOutWithoutChangingThem) {
  Parameters parameters = make_parameters();
  parameters[3] = parameters[3].detach().to(at::MemoryFormat::ChannelsLast).requires_grad_();
  const auto strides = parameters[3].strides().vec();
  const auto* impl = parameters[3].unsafeGetTensorImpl();
  const AdamW optimizer(parameters);
  expect_same(parameters, make_parameters());
  EXPECT_EQ(parameters[3].strides().vec(), strides);
  EXPECT_EQ(parameters[3].unsafeGetTensorImpl(), impl);
  for (const at::Tensor& parameter : parameters) {
    EXPECT_TRUE(share_memory(parameter, parameters[0]));
    EXPECT_TRUE(parameter.is_leaf() && parameter.requires_grad());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(parameter.const_data_ptr()) % 64, 0U);
  }
}

TEST(FlatOptimizer, UpdatesABucketOfGradientsWithOneCall) {
  const Parameters parameters = make_parameters();
  Buckets buckets(parameters);
  ASSERT_EQ(buckets.count(), 1U);
  AdamW optimizer(parameters);
  buckets.put(0, /*all=*/true);
  optimizer.step();
  EXPECT_EQ(optimizer.run_count(), 1U);
  put_gradients(parameters, 12);
  optimizer.step();
  EXPECT_EQ(optimizer.run_count(), parameters.size()) << "gradients are apart";
}

TEST(FlatOptimizer, UpdatesEachBucketWithOneCallForEveryLayout) {
  const Parameters parameters = make_parameters();
  Buckets buckets(parameters, 100);
  ASSERT_GT(buckets.count(), 1U);
  AdamW optimizer(parameters);
  for (int64_t t = 0; t < 3; ++t) {
    buckets.put(t, /*all=*/true);
    optimizer.step();
    EXPECT_EQ(optimizer.run_count(), buckets.count());
  }
}

TEST(FlatOptimizer, JoinsOnlyParametersWithEqualStepCounts) {
  const Parameters parameters = make_parameters();
  Buckets buckets(parameters);
  AdamW optimizer(parameters);
  buckets.put(1);  // Not parameters 1 and 3: 4 | 2 | 0.
  optimizer.step();
  EXPECT_EQ(optimizer.run_count(), 3U);
  buckets.put(1, /*all=*/true);  // Steps 2 | 1 | 2 | 1 | 2.
  optimizer.step();
  EXPECT_EQ(optimizer.run_count(), 5U);

  SGD sgd(parameters, {.lr = 0.1});  // Their memory is AdamW's buffer: they stay there.
  EXPECT_NO_THROW(sgd.step());
  EXPECT_EQ(sgd.run_count(), 5U);
}

TEST(FlatOptimizer, RulesWithNormsSeeEveryParameterByItself) {
  const Parameters parameters = make_parameters();
  Buckets buckets(parameters);
  LAMB optimizer(parameters);
  buckets.put(0, /*all=*/true);
  optimizer.step();
  EXPECT_EQ(optimizer.run_count(), parameters.size());
}

TEST(FlatOptimizer, LongRangesAreUpdatedInChunks) {
  // One longer than a chunk, one not a multiple of it.
  const Parameters uncut = {
      at::linspace(-1, 1, 300007, at::kDouble).requires_grad_(),
      at::linspace(-1, 1, 200000, at::kDouble).requires_grad_()};
  Parameters cut;
  for (const at::Tensor& parameter : uncut) {
    for (const at::Tensor& part : parameter.detach().split(1000)) {
      cut.push_back(part.clone().requires_grad_());
    }
  }
  RMSprop one(uncut, {.momentum = 0.9, .centered = true});
  RMSprop many(cut, {.momentum = 0.9, .centered = true});
  for (int t = 0; t < 3; ++t) {
    size_t k = 0;
    for (const at::Tensor& parameter : uncut) {
      parameter.mutable_grad() = parameter.detach().sin() + t;
      for (const at::Tensor& part : parameter.grad().split(1000)) {
        cut[k++].mutable_grad() = part.clone();
      }
    }
    one.step();
    many.step();
  }
  const Parameters first(cut.begin(), cut.begin() + 301);
  EXPECT_TRUE(at::allclose(uncut[0], at::cat(first), 1e-14, 1e-15));
  EXPECT_TRUE(
      at::allclose(uncut[1], at::cat(Parameters(cut.begin() + 301, cut.end())), 1e-14, 1e-15));
}

TEST(FlatOptimizer, AutogradNoticesAnUpdateOfAParameterShorterThanAVector) {
  const at::Tensor parameter = at::ones({3}).requires_grad_();
  AdamW optimizer({parameter});
  parameter.mutable_grad() = at::ones({3});
  const at::Tensor loss = (parameter * parameter).sum();
  optimizer.step();
  EXPECT_THROW(loss.backward(), c10::Error);
}

template <typename Optimizer>
std::string error_after_resize(const at::Tensor& before, const at::Tensor& after) {
  at::Tensor parameter = before.clone().requires_grad_();
  const at::Tensor other = at::ones({8}).requires_grad_();
  Optimizer optimizer({parameter, other});
  parameter.mutable_grad() = at::ones_like(before);
  optimizer.step();
  parameter.mutable_grad().reset();
  parameter.set_data(after.clone());
  parameter.mutable_grad() = at::ones_like(after);
  other.mutable_grad() = at::ones({8});
  const at::Tensor other_before = other.detach().clone();
  try {
    optimizer.step();
  } catch (const ConfigError& error) {
    EXPECT_TRUE(at::equal(other, other_before)) << "refused, so nothing was changed";
    return error.what();
  }
  return "no ConfigError";
}

TEST(FlatOptimizer, RefusesAParameterWhoseShapeChanged) {
  using ::testing::HasSubstr;
  const at::Tensor large = at::ones({200000});
  const auto wanted = HasSubstr("resized from [4] to [200000]; build a new optimizer");
  EXPECT_THAT(error_after_resize<SGD>(at::ones({4}), large), wanted);
  EXPECT_THAT(error_after_resize<AdamW>(at::ones({4}), large), wanted);
  EXPECT_THAT(error_after_resize<Lion>(at::ones({4}), large), wanted);
  EXPECT_THAT(error_after_resize<Adafactor>(at::ones({4}), large), wanted);
  EXPECT_THAT(error_after_resize<AdamW>(large, at::ones({4})), HasSubstr("to [4]"));
  EXPECT_THAT(error_after_resize<Adafactor>(at::ones({2, 6}), at::ones({4, 3})), HasSubstr("2, 6"));
}

TEST(FlatOptimizer, RefusesAGradientThatDoesNotFit) {
  at::Tensor parameter = at::ones({4}).requires_grad_();
  AdamW optimizer({parameter});
  parameter.mutable_grad() = at::ones({4});
  parameter.set_data(at::ones({6}));
  EXPECT_THROW(optimizer.step(), ConfigError);
  parameter.set_data(at::ones({4}));
  EXPECT_NO_THROW(optimizer.step());
}

TEST(FlatOptimizer, FollowsParametersThatAreMoved) {
  const Parameters expected = reference(6);
  Parameters parameters = make_parameters();
  AdamW optimizer(parameters);
  for (int64_t t = 0; t < 6; ++t) {
    if (t == 2) {
      parameters[0].set_data(parameters[0].detach().clone());
    }
    if (t == 4) {
      parameters[3].set_data(parameters[3].detach().to(at::MemoryFormat::ChannelsLast));
      parameters[0].set_data(parameters[0].detach().t().contiguous().t());
    }
    put_gradients(parameters, t);
    optimizer.step();
  }
  expect_close(parameters, expected);
}

TEST(FlatOptimizer, StateFollowsToAnotherDtype) {
  Parameters parameters = make_parameters();
  AdamW optimizer(parameters);
  put_gradients(parameters, 0);
  optimizer.step();
  for (at::Tensor& parameter : parameters) {
    parameter.mutable_grad().reset();
    parameter.set_data(parameter.detach().to(at::kDouble));
  }
  put_gradients(parameters, 1);
  optimizer.step();
  EXPECT_EQ(optimizer.state_of(parameters[0]).fields[0].scalar_type(), at::kDouble);
  const Parameters expected = reference(2);
  for (size_t k = 0; k < parameters.size(); ++k) {
    EXPECT_TRUE(at::allclose(parameters[k], expected[k].to(at::kDouble), 1e-6, 1e-7));
  }
}

TEST(FlatOptimizer, DoesNotMoveParametersWithSharedMemory) {
  Parameters parameters = make_parameters();
  const at::Tensor view = parameters[0].detach();
  SGD optimizer(parameters, {.lr = 0.1});
  put_gradients(parameters, 0);
  optimizer.step();
  EXPECT_TRUE(share_memory(view, parameters[0]));
  EXPECT_TRUE(at::equal(view, parameters[0]));
  EXPECT_FALSE(at::equal(view, make_parameters()[0]));
}

TEST(FlatOptimizer, UpdatesParametersWithGapsInMemory) {
  const at::Tensor wide = at::zeros({4, 6});
  at::Tensor gappy = wide.narrow(1, 0, 3).detach().requires_grad_();
  at::Tensor plain = at::zeros({4, 3}).requires_grad_();
  AdamW optimizer({gappy, plain}, {.lr = 0.1});
  for (int t = 0; t < 3; ++t) {
    plain.mutable_grad() = numbers({4, 3}, t, 5, 11, 4).to(at::kFloat);
    gappy.mutable_grad() = plain.grad().clone();
    optimizer.step();
  }
  EXPECT_TRUE(at::equal(gappy, plain));
  EXPECT_TRUE(at::equal(wide.narrow(1, 3, 3), at::zeros({4, 3})));
}

TEST(FlatOptimizer, UpdatesATiedParameterOnceAndFrozenOnesNever) {
  Parameters parameters = make_parameters();
  parameters[2] = parameters[2].detach();
  Parameters listed = parameters;
  listed.push_back(parameters[0]);
  SGD optimizer(listed, {.lr = 1});
  put_gradients({parameters[0], parameters[1]}, 0);
  optimizer.step();
  EXPECT_TRUE(at::equal(parameters[0], make_parameters()[0] - gradient(0, 0)));
  EXPECT_TRUE(at::equal(parameters[2], make_parameters()[2]));
  EXPECT_FALSE(share_memory(parameters[2], parameters[0]));
  EXPECT_EQ(optimizer.param_groups()[0].params().size(), parameters.size());
}

TEST(FlatOptimizer, KeepsDtypesInSeparateBuffers) {
  Parameters parameters = make_parameters();
  for (const at::Tensor& parameter : make_parameters(at::kDouble)) {
    parameters.push_back(parameter);
  }
  AdamW optimizer(parameters);
  Parameters doubles(parameters.begin() + 5, parameters.end());
  put_gradients(Parameters(parameters.begin(), parameters.begin() + 5), 0);
  put_gradients(doubles, 0);
  optimizer.step();
  expect_same(Parameters(parameters.begin(), parameters.begin() + 5), reference(1));
  EXPECT_EQ(optimizer.state_of(doubles[0]).fields[0].scalar_type(), at::kDouble);
}

TEST(FlatOptimizer, GroupsHaveTheirOwnOptionsAndCanBeAdded) {
  Parameters parameters = make_parameters();
  SGD optimizer(
      std::vector<SGD::Group>{{{parameters[0]}, {.lr = 1}}, {{parameters[1]}, {.lr = 0.5}}});
  optimizer.add_param_group({{parameters[4]}, {.lr = 0.125}});
  optimizer.add_param_group(torch::optim::OptimizerParamGroup({parameters[2]}));
  optimizer.options(2).lr = 0.25;
  EXPECT_THROW(optimizer.add_param_group({{parameters[3]}, {.lr = -1}}), ConfigError);
  put_gradients(parameters, 0);
  optimizer.step();
  const Parameters before = make_parameters();
  EXPECT_TRUE(at::allclose(parameters[0], before[0] - gradient(0, 0)));
  EXPECT_TRUE(at::allclose(parameters[1], before[1] - 0.5 * gradient(1, 0)));
  EXPECT_TRUE(at::allclose(parameters[4], before[4] - 0.25 * gradient(4, 0)));
  EXPECT_TRUE(at::allclose(parameters[2], before[2] - gradient(2, 0)));
}

TEST(FlatOptimizer, TorchsSchedulersAndClosuresWorkWithIt) {
  Parameters parameters = make_parameters();
  Parameters theirs = make_parameters();
  SGD optimizer(parameters, {.lr = 0.1});
  torch::optim::SGD reference(theirs, torch::optim::SGDOptions(0.1));
  torch::optim::StepLR schedule(optimizer, 1, 0.5);
  torch::optim::StepLR reference_schedule(reference, 1, 0.5);
  const auto loss_of = [](const Parameters& all) {
    return [all] {
      const at::Tensor loss = (all[0] * all[0]).sum() + all[1].sin().sum();
      loss.backward();
      return loss;
    };
  };
  for (int t = 0; t < 3; ++t) {
    optimizer.zero_grad();
    reference.zero_grad();
    const at::Tensor loss = optimizer.step(loss_of(parameters));
    EXPECT_TRUE(at::allclose(loss, reference.step(loss_of(theirs))));
    schedule.step();
    reference_schedule.step();
  }
  EXPECT_LT(optimizer.options().lr, 0.1);
  EXPECT_DOUBLE_EQ(optimizer.options().lr, reference.param_groups()[0].options().get_lr());
  expect_close(parameters, theirs);
  EXPECT_TRUE(optimizer.state().empty());
}

TEST(FlatOptimizer, SurvivesBeingMoved) {
  const Parameters parameters = make_parameters();
  AdamW first(parameters);
  put_gradients(parameters, 0);
  first.step();
  AdamW second(std::move(first));
  put_gradients(parameters, 1);
  second.step();
  expect_same(parameters, reference(2));
}

TEST(FlatOptimizer, AutogradNoticesAnUpdateOfASavedTensor) {
  const Parameters parameters = make_parameters();
  Buckets buckets(parameters);
  SGD optimizer(parameters, {.lr = 0.1});
  buckets.put(0, /*all=*/true);
  const at::Tensor loss = (parameters[0] * parameters[0]).sum() * parameters[1].sum();
  optimizer.step();
  ASSERT_EQ(optimizer.run_count(), 1U);
  EXPECT_THROW(loss.backward(), c10::Error);
}

TEST(FlatOptimizer, RefusesParametersThatItCannotUpdate) {
  const Parameters parameters = make_parameters();
  EXPECT_THROW(SGD(Parameters{}), ConfigError);
  EXPECT_THROW(SGD({at::ones({2}, at::kComplexFloat).requires_grad_()}), ConfigError);
  EXPECT_THROW(SGD({parameters[0] * 2}), ConfigError);
  EXPECT_THROW(
      SGD(std::vector<SGD::Group>{{{parameters[0]}, {}}, {{parameters[0]}, {}}}), ConfigError);

  SGD optimizer(parameters);
  parameters[0].mutable_grad() = gradient(0, 0).to_sparse();
  EXPECT_THROW(optimizer.step(), ConfigError);
  parameters[0].mutable_grad().reset();
  optimizer.add_param_group(torch::optim::OptimizerParamGroup({parameters[1]}));
  EXPECT_THROW(optimizer.step(), ConfigError) << "now in two groups";

  SGD shrunk(make_parameters());
  shrunk.param_groups()[0].params().pop_back();
  EXPECT_THROW(shrunk.step(), ConfigError);
}

}  // namespace
}  // namespace lockstep::optim
