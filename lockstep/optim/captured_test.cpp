// SPDX-License-Identifier: Apache-2.0
// Updates in graphs, on the test device, which records operations while it captures and repeats
// them. A number that the host passes by value would be the capture's in every replay.
#include "lockstep/comm/device/test_device_graph.h"

#if LOCKSTEP_TEST_GRAPHS

#include <cstdint>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <ATen/accelerator/Graph.h>

#include "lockstep/comm/device/test_device.h"
#include "lockstep/optim/clip.h"
#include "lockstep/optim/rules/adafactor.h"
#include "lockstep/optim/rules/adam.h"
#include "lockstep/optim/rules/sgd.h"
#include "lockstep/optim/test_training.h"

namespace lockstep::optim {
namespace {

using ::testing::HasSubstr;

/// Captures `body`, and gives up the graph.
template <typename Body>
std::string error_while_capturing(const Body& body) {
  at::accelerator::Graph graph;
  graph.capture_begin();
  const std::string error = error_of(body);
  graph.capture_end();
  return error;
}

TEST(TestGraph, DoesNothingWhileCapturingAndRepeatsTheHostsNumbers) {
  const at::Tensor x = at::ones({3}, at::TensorOptions(test_device()));
  const at::Tensor y = at::zeros({3}, at::TensorOptions(test_device()));
  at::accelerator::Graph graph;
  graph.capture_begin();
  double number = 2;
  const at::Tensor z = (x * number).add_(y);
  y.copy_(z + 1);
  x.fill_(number);
  EXPECT_ANY_THROW(x.sum().item());
  EXPECT_ANY_THROW(x.cpu());
  EXPECT_ANY_THROW(x.copy_(at::ones({3})));
  graph.capture_end();
  number = 100;
  EXPECT_TRUE(at::equal(x.cpu(), at::ones({3})));
  EXPECT_TRUE(at::equal(y.cpu(), at::zeros({3})));
  graph.replay();
  EXPECT_TRUE(at::equal(y.cpu(), at::full({3}, 3.0)));
  EXPECT_TRUE(at::equal(x.cpu(), at::full({3}, 2.0)));
  graph.replay();
  EXPECT_TRUE(at::equal(y.cpu(), at::full({3}, 8.0)));
}

TEST(Capturable, AGraphContinuesFromLoadedState) {
  const Training device(test_device());
  AdamW optimizer(device.parameters, {.capturable = true});
  device.step(optimizer, 0);
  const Parameters values = [&] {
    Parameters copies;
    for (const at::Tensor& parameter : device.parameters) {
      copies.push_back(parameter.detach().clone());
    }
    return copies;
  }();
  NamedTensors saved;
  for (const NamedTensor& item : optimizer_tensors(optimizer, namer(device.parameters))) {
    saved.push_back({item.name, item.tensor.clone()});
  }
  const nlohmann::json settings = optimizer_settings(optimizer);
  at::accelerator::Graph graph;
  graph.capture_begin();
  optimizer.step();
  graph.capture_end();
  for (int64_t t = 1; t < 4; ++t) {
    device.put_gradients(t);
    optimizer.param_groups()[0].options().set_lr(0.5);
    graph.replay();
  }
  EXPECT_EQ(optimizer.state_of(device.parameters[0]).step, 4);
  check_optimizer(optimizer, namer(device.parameters), saved, settings, "a file")();
  for (size_t k = 0; k < values.size(); ++k) {
    device.parameters[k].data().copy_(values[k]);
  }
  device.put_gradients(1);
  graph.replay();  // With the loaded rate.

  const Training plain(test_device());
  AdamW reference(plain.parameters, {});
  plain.step(reference, 0);
  plain.put_gradients(1);
  reference.step();
  expect_same_state(optimizer, device.parameters, reference, plain.parameters, 0);
}

TEST(Capturable, AGraphOfSomeParametersCountsThose) {
  const Training plain(test_device());
  AdamW reference(plain.parameters, {});
  const Training device(test_device());
  AdamW optimizer(device.parameters, {.capturable = true});
  plain.step(reference, 0);
  device.step(optimizer, 0);
  plain.parameters[1].mutable_grad().reset();
  device.parameters[1].mutable_grad().reset();
  at::accelerator::Graph graph;
  graph.capture_begin();
  optimizer.step();
  graph.capture_end();
  for (int64_t t = 1; t < 5; ++t) {
    plain.step(reference, t);
    device.put_gradients(t);
    optimizer.param_groups()[0].options().set_lr(rate(t));
    graph.replay();
  }
  for (const Training* each : {&plain, &device}) {
    const at::Tensor& late = each->parameters[1];
    late.mutable_grad() = at::zeros_like(late.detach());
  }
  for (int64_t t = 5; t < 8; ++t) {
    plain.step(reference, t);
    device.step(optimizer, t);
  }
  EXPECT_EQ(optimizer.state_of(device.parameters[1]).step, 4);
  expect_same_state(optimizer, device.parameters, reference, plain.parameters, 0);
}

/// A step of `optimizer` as `graph`.
void capture_step(at::accelerator::Graph& graph, AdamW& optimizer) {
  graph.capture_begin();
  optimizer.step();
  graph.capture_end();
}

TEST(Capturable, GraphsOfAllAndOfSomeParametersAlternate) {
  BucketTraining plain(test_device(), /*capturable=*/false);
  BucketTraining device(test_device(), /*capturable=*/true);
  plain.buckets.put(0, /*all=*/true);
  plain.optimizer.step();
  device.buckets.put(0, /*all=*/true);
  device.optimizer.step();
  ASSERT_LT(device.optimizer.run_count(), device.parameters.size());  // Neighbours are joined.
  at::accelerator::Graph all;
  capture_step(all, device.optimizer);
  device.parameters[1].mutable_grad().reset();
  at::accelerator::Graph some;
  capture_step(some, device.optimizer);
  for (int64_t t = 1; t < 8; ++t) {
    plain.buckets.put(t, /*all=*/true);
    device.buckets.put(t, /*all=*/true);
    if (t % 2 == 0) {
      plain.parameters[1].mutable_grad().reset();
    }
    plain.optimizer.step();
    (t % 2 == 0 ? some : all).replay();
  }
  plain.buckets.put(8, /*all=*/true);
  plain.optimizer.step();
  device.buckets.put(8, /*all=*/true);
  device.optimizer.step();
  expect_same_state(device.optimizer, device.parameters, plain.optimizer, plain.parameters, 1e-6);
}

TEST(Capturable, TheNextStepSeesAPartialGraphsReplayAfterLoading) {
  BucketTraining plain(test_device(), /*capturable=*/false);
  BucketTraining device(test_device(), /*capturable=*/true);
  device.buckets.put(0, /*all=*/true);
  device.optimizer.step();
  device.parameters[1].mutable_grad().reset();
  at::accelerator::Graph some;
  capture_step(some, device.optimizer);
  for (size_t k = 0; k < device.parameters.size(); ++k) {
    const at::Tensor ones = at::ones_like(device.parameters[k].detach());
    device.optimizer.set_state(device.parameters[k], {.step = 5, .fields = {ones, ones}});
    plain.optimizer.set_state(plain.parameters[k], {.step = 5, .fields = {ones, ones}});
    plain.parameters[k].data().copy_(device.parameters[k]);
  }
  for (int64_t t = 1; t < 3; ++t) {
    plain.buckets.put(t, /*all=*/true);
    device.buckets.put(t, /*all=*/true);
    if (t == 1) {
      plain.parameters[1].mutable_grad().reset();
      some.replay();
    } else {
      device.optimizer.step();
    }
    plain.optimizer.step();
  }
  expect_same_state(device.optimizer, device.parameters, plain.optimizer, plain.parameters, 1e-6);
}

TEST(Capturable, LoadingWritesToTheSameMemoryForAnyParameterStorage) {
  const at::TensorOptions there(test_device());
  const at::Tensor with_gaps = at::ones({4, 8}, there).narrow(1, 0, 4).detach().requires_grad_();
  const at::Tensor alone = at::ones({8}, there).requires_grad_();
  AdamW optimizer({with_gaps, alone}, {.capturable = true});
  for (const at::Tensor& parameter : {with_gaps, alone}) {
    parameter.mutable_grad() = at::ones(parameter.sizes(), there);
  }
  optimizer.step();
  for (const at::Tensor& parameter : {with_gaps, alone}) {
    const at::Tensor before = optimizer.state_of(parameter).fields[0];
    const at::Tensor twos = at::full(parameter.sizes(), 2, there);
    optimizer.set_state(parameter, {.step = 3, .fields = {twos, twos}});
    const auto state = optimizer.state_of(parameter);
    EXPECT_EQ(state.fields[0].const_data_ptr(), before.const_data_ptr());
    EXPECT_TRUE(at::equal(before.cpu(), twos.cpu()));
    EXPECT_EQ(state.step, 3);
  }
}

TEST(Capturable, ClippingMayBeInTheGraph) {
  const Training plain(test_device());
  AdamW reference(plain.parameters, {.lr = 0.5});
  const Training device(test_device());
  AdamW optimizer(device.parameters, {.lr = 0.5, .capturable = true});
  const auto clipped_step = [](const Training& training, AdamW& which) {
    clip_grad_norm_(training.parameters, 0.1);
    which.step();
  };
  plain.put_gradients(0);
  clipped_step(plain, reference);
  device.put_gradients(0);
  clipped_step(device, optimizer);
  at::accelerator::Graph graph;
  graph.capture_begin();
  clipped_step(device, optimizer);
  graph.capture_end();
  for (int64_t t = 1; t < 5; ++t) {
    plain.put_gradients(t);
    clipped_step(plain, reference);
    device.put_gradients(t);
    graph.replay();
  }
  expect_same_state(optimizer, device.parameters, reference, plain.parameters, 1e-6);
}

TEST(Capturable, HostWorkThatAGraphWouldNotRepeatIsRefused) {
  const Training device(test_device());
  AdamW plain(device.parameters, {});
  device.step(plain, 0);
  EXPECT_THAT(error_while_capturing([&] { plain.step(); }), HasSubstr(".capturable = true"));
  const Training others(test_device());
  Adafactor adafactor(others.parameters, {});
  EXPECT_THAT(
      error_while_capturing([&] { adafactor.step(); }), HasSubstr("not supported by Adafactor"));

  AdamW fresh(Training(test_device()).parameters, {.capturable = true});
  EXPECT_THAT(
      error_while_capturing([&] { fresh.step(); }), HasSubstr("take a step before the capture"));
  SGD no_rate(Training(test_device()).parameters, {.capturable = true});
  EXPECT_THAT(
      error_while_capturing([&] { no_rate.step(); }), HasSubstr("take a step before the capture"));
  EXPECT_NO_THROW(no_rate.write_rates());

  const Training training(test_device());
  AdamW optimizer(training.parameters, {.capturable = true});
  training.step(optimizer, 0);
  EXPECT_THAT(
      error_while_capturing([&] { optimizer.param_groups()[0].options().set_lr(0.2); }),
      HasSubstr("the learning rate was changed"));
  optimizer.param_groups()[0].options().set_lr(0.3);
  optimizer.options().lr = 0.4;
  EXPECT_THAT(
      error_while_capturing([&] { optimizer.step(); }), HasSubstr("the learning rate was changed"));

  const Training moved(test_device());
  AdamW follower(moved.parameters, {.capturable = true});
  moved.step(follower, 0);
  at::Tensor weight = moved.parameters[0];
  weight.set_data(weight.detach().t().contiguous().t());
  EXPECT_THAT(
      error_while_capturing([&] { follower.step(); }), HasSubstr("has moved since its last step"));

  const Training late(test_device());
  AdamW partial(late.parameters, {.capturable = true});
  const at::Tensor gradient = late.parameters[0].grad();
  late.parameters[0].mutable_grad().reset();
  late.step(partial, 0);
  late.parameters[0].mutable_grad() = gradient;
  EXPECT_THAT(error_while_capturing([&] { partial.step(); }), HasSubstr("its first gradient"));
}

}  // namespace
}  // namespace lockstep::optim

#endif
