// SPDX-License-Identifier: Apache-2.0
// Updates that can be captured have the numbers of those that cannot, and read nothing from the
// device; here on the test device. See captured_test.cpp for what a graph makes of them.
#include "lockstep/optim/flat/capturable.h"

#include <cstdint>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/comm/device/test_device.h"
#include "lockstep/comm/device/test_device_graph.h"
#include "lockstep/optim/rules/adadelta.h"
#include "lockstep/optim/rules/adagrad.h"
#include "lockstep/optim/rules/adam.h"
#include "lockstep/optim/rules/adamax.h"
#include "lockstep/optim/rules/lamb.h"
#include "lockstep/optim/rules/lion.h"
#include "lockstep/optim/rules/radam.h"
#include "lockstep/optim/rules/rmsprop.h"
#include "lockstep/optim/rules/rprop.h"
#include "lockstep/optim/rules/sgd.h"
#include "lockstep/optim/state/momentum.h"
#include "lockstep/optim/test_training.h"

#if LOCKSTEP_TEST_GRAPHS
#include <ATen/accelerator/Graph.h>
#endif

namespace lockstep::optim {
namespace {

using ::testing::HasSubstr;

template <typename Optimizer>
typename Optimizer::Options capturable(typename Optimizer::Options options) {
  options.capturable = true;
  return options;
}

template <typename Optimizer>
void expect_steps_without_reading(
    const typename Optimizer::Options& options, double tolerance, at::ScalarType type) {
  const Training plain(test_device(), type);
  Optimizer reference(plain.parameters, options);
  const Training device(test_device(), type);
  Optimizer optimizer(device.parameters, capturable<Optimizer>(options));
  for (int64_t t = 0; t < kSteps; ++t) {
    plain.step(reference, t);
    const int64_t reads = test_device_reads();
    device.step(optimizer, t);
    EXPECT_EQ(test_device_reads(), reads);
  }
  expect_same_state(optimizer, device.parameters, reference, plain.parameters, tolerance);
}

#if LOCKSTEP_TEST_GRAPHS

template <typename Optimizer>
void expect_replays(const typename Optimizer::Options& options, double tolerance) {
  const Training plain(test_device());
  Optimizer reference(plain.parameters, options);
  const Training device(test_device());
  Optimizer optimizer(device.parameters, capturable<Optimizer>(options));
  for (int64_t t = 0; t < 2; ++t) {
    plain.step(reference, t);
    device.step(optimizer, t);
  }
  at::accelerator::Graph graph;
  graph.capture_begin();
  optimizer.step();
  graph.capture_end();
  expect_same_state(optimizer, device.parameters, reference, plain.parameters, tolerance);
  for (int64_t t = 2; t < kSteps; ++t) {
    plain.step(reference, t);
    device.put_gradients(t);
    optimizer.param_groups()[0].options().set_lr(rate(t));
    graph.replay();
  }
  expect_same_state(optimizer, device.parameters, reference, plain.parameters, tolerance);
  for (int64_t t = kSteps; t < kSteps + 2; ++t) {  // And on without the graph.
    plain.step(reference, t);
    device.step(optimizer, t);
  }
  expect_same_state(optimizer, device.parameters, reference, plain.parameters, tolerance);
}

#else

template <typename Optimizer>
void expect_replays(const typename Optimizer::Options& /*options*/, double /*tolerance*/) {}

#endif

template <typename Optimizer>
void expect_capturable(const typename Optimizer::Options& options, double tolerance = 0) {
  test_device();
  expect_steps_without_reading<Optimizer>(options, tolerance, at::kFloat);
  expect_steps_without_reading<Optimizer>(options, tolerance, at::kDouble);
  expect_replays<Optimizer>(options, tolerance);
}

TEST(Capturable, AdamEqualsTheNonCapturableOptimizer) {
  expect_capturable<AdamW>({});
  expect_capturable<AdamW>({.weight_decay = 0.1, .amsgrad = true, .maximize = true});
  expect_capturable<Adam>({.weight_decay = 0.1});
}

TEST(Capturable, SgdEqualsTheNonCapturableOptimizer) {
  expect_capturable<SGD>({});
  expect_capturable<SGD>({.momentum = 0.9, .weight_decay = 0.1, .nesterov = true});
}

TEST(Capturable, AdagradEqualsTheNonCapturableOptimizer) {
  expect_capturable<Adagrad>({.lr_decay = 0.1, .initial_accumulator_value = 0.5});
}

TEST(Capturable, LionEqualsTheNonCapturableOptimizer) {
  expect_capturable<Lion>({});
  expect_capturable<Lion>({.weight_decay = 0.1}, 1e-6);
}

TEST(Capturable, RmspropIsCloseToTheNonCapturableOptimizer) {
  expect_capturable<RMSprop>({}, 1e-6);
  expect_capturable<RMSprop>({.weight_decay = 0.1, .momentum = 0.9, .centered = true}, 1e-6);
}

TEST(Capturable, AdamWithoutBiasCorrectionEqualsTheNonCapturableOptimizer) {
  expect_capturable<AdamW>({.bias_correction = false});
}

TEST(Capturable, AdadeltaIsCloseToTheNonCapturableOptimizer) {
  expect_capturable<Adadelta>({.weight_decay = 0.1}, 1e-6);
}

TEST(Capturable, AdamaxIsCloseToTheNonCapturableOptimizer) {
  expect_capturable<Adamax>({.weight_decay = 0.1}, 1e-6);
}

TEST(Capturable, RadamIsCloseToTheNonCapturableOptimizer) {
  expect_capturable<RAdam>({.weight_decay = 0.1}, 1e-6);
  // Its second moment counts from the sixth step on, so both kinds of steps are among the twelve.
  expect_capturable<RAdam>({.weight_decay = 0.1, .decoupled_weight_decay = true}, 1e-6);
}

TEST(Capturable, RpropEqualsTheNonCapturableOptimizer) {
  expect_capturable<Rprop>({.lr = rate(0)});
}

TEST(Capturable, LambIsCloseToTheNonCapturableOptimizer) {
  expect_capturable<LAMB>({.weight_decay = 0.1}, 1e-6);
  expect_capturable<LAMB>({.bias_correction = false}, 1e-6);
  expect_capturable<LAMB>({.eps = 1e-3, .eps_inside_sqrt = true}, 1e-6);
}

TEST(Capturable, HalfPrecisionKeepsTheRateInFp32) {
  // In bf16 the rate would be the parameter, and leave nothing of it.
  const at::Tensor start = at::full({4}, 0.0101, at::kBFloat16);
  const at::Tensor parameter = start.to(test_device()).requires_grad_();
  parameter.mutable_grad() = at::ones_like(parameter.detach());
  Lion optimizer({parameter}, {.lr = 0.0101, .capturable = true});
  optimizer.step();
  const at::Tensor expected = (start.to(at::kFloat) - 0.0101F).to(at::kBFloat16);
  EXPECT_TRUE(expected.ne(0).all().item<bool>());
  EXPECT_TRUE(at::equal(parameter.detach().cpu(), expected));
}

TEST(Capturable, ChangesNothingOnTheCpu) {
  const Training host(at::kCPU);
  AdamW reference(host.parameters, {.lr = 0.1});
  const Training same(at::kCPU);
  AdamW optimizer(same.parameters, {.lr = 0.1, .capturable = true});
  for (int64_t t = 0; t < kSteps; ++t) {
    host.put_gradients(t);
    reference.step();
    same.put_gradients(t);
    optimizer.step();
  }
  expect_same_state(optimizer, same.parameters, reference, host.parameters, 0);
}

TEST(Capturable, ParametersThatWereUpdatedLessOftenHaveTheirOwnCount) {
  const Training plain(test_device());
  AdamW reference(plain.parameters, {});
  const Training device(test_device());
  AdamW optimizer(device.parameters, {.capturable = true});
  const auto step = [](const Training& training, AdamW& which, int64_t t) {
    for (size_t k = 0; k < training.parameters.size(); ++k) {
      const at::Tensor value = gradient(k, t);
      training.parameters[k].mutable_grad() =
          value.defined() ? value.to(training.parameters[k].device()) : value;
    }
    which.param_groups()[0].options().set_lr(rate(t));
    which.step();
  };
  for (int64_t t = 0; t < kSteps; ++t) {
    step(plain, reference, t);
    step(device, optimizer, t);
  }
  expect_same_state(optimizer, device.parameters, reference, plain.parameters, 0);
}

TEST(Capturable, JoinsNeighboursThatWereUpdatedAsOftenAndNoOthers) {
  BucketTraining plain(test_device(), /*capturable=*/false);
  BucketTraining device(test_device(), /*capturable=*/true);
  for (int64_t t = 0; t < kSteps; ++t) {
    plain.buckets.put(t);
    plain.optimizer.step();
    device.buckets.put(t);
    device.optimizer.step();
    EXPECT_EQ(device.optimizer.run_count(), plain.optimizer.run_count());
    EXPECT_LE(device.optimizer.run_count(), t == 0 ? 2U : 5U);  // Three of four are neighbours.
  }
  expect_same_state(device.optimizer, device.parameters, plain.optimizer, plain.parameters, 1e-6);
}

TEST(Capturable, MayBeSwitchedOnAndOff) {
  const Training plain(test_device());
  AdamW reference(plain.parameters, {});
  const Training device(test_device());
  AdamW optimizer(device.parameters, {});
  for (int64_t t = 0; t < kSteps; ++t) {
    optimizer.options().capturable = t % 4 >= 2;
    plain.step(reference, t);
    device.step(optimizer, t);
    expect_same_state(optimizer, device.parameters, reference, plain.parameters, 0);
  }
}

TEST(Capturable, SavesAndLoadsTheStateOfTheNonCapturableOptimizer) {
  const Training device(test_device());
  AdamW optimizer(device.parameters, {.capturable = true});
  for (int64_t t = 0; t < 3; ++t) {
    device.step(optimizer, t);
  }
  const NamedTensors saved = optimizer_tensors(optimizer, namer(device.parameters));
  const nlohmann::json settings = optimizer_settings(optimizer);
  EXPECT_FALSE(settings["param_groups"][0].contains("capturable"));

  for (const bool there : {false, true}) {
    const Training other(there ? test_device() : at::Device(at::kCPU));
    AdamW loaded(other.parameters, {.capturable = there});
    check_optimizer(loaded, namer(other.parameters), saved, settings, "a file")();
    for (size_t k = 0; k < other.parameters.size(); ++k) {
      other.parameters[k].data().copy_(device.parameters[k]);
    }
    EXPECT_EQ(loaded.state_of(other.parameters[0]).step, 3);
    const Training again(test_device());
    AdamW unbroken(again.parameters, {.capturable = true});
    for (int64_t t = 0; t < 5; ++t) {
      again.step(unbroken, t);
    }
    for (int64_t t = 3; t < 5; ++t) {
      other.step(loaded, t);
    }
    expect_same_state(loaded, other.parameters, unbroken, again.parameters, there ? 0 : 1e-6);
  }
}

TEST(Capturable, AScheduleThatCyclesMomentumIsRefused) {
  const Training device(test_device());
  AdamW optimizer(device.parameters, {.capturable = true});
  EXPECT_THAT(
      error_of([&] { set_momentum(optimizer, 0, 0.8); }), HasSubstr("switch cycle_momentum off"));
}

TEST(Capturable, AGroupOnTwoDevicesIsRefused) {
  for (const bool host_first : {false, true}) {
    Parameters parameters = Training(test_device()).parameters;
    parameters.insert(
        host_first ? parameters.begin() : parameters.end(), at::ones({3}).requires_grad_());
    AdamW optimizer(parameters, {.capturable = true});
    EXPECT_THAT(error_of([&] { optimizer.step(); }), HasSubstr("give each device a group"));
  }
}

TEST(Capturable, AnUpdateOnTheHostIsRefused) {
  const at::Tensor buffer = at::ones({64});
  const at::Tensor slice = buffer.narrow(0, 0, 64).detach().requires_grad_();
  AdamW optimizer({at::ones({64}).requires_grad_()}, {.capturable = true});
  EXPECT_THAT(
      error_of([&] {
        optimizer.update_shards(
            {{{.buffer = buffer, .tensors = {slice}}}}, {.device = OffloadDevice::kCpu});
      }),
      HasSubstr("capturable cannot be combined with offload_optimizer"));

  // Nor if it is switched on later, when only the state is on the host.
  const at::Tensor there = at::ones({64}, at::TensorOptions(test_device()));
  const at::Tensor part = there.narrow(0, 0, 64).detach().requires_grad_();
  AdamW later({at::ones({64}, at::TensorOptions(test_device())).requires_grad_()}, {});
  later.update_shards({{{.buffer = there, .tensors = {part}}}}, {.device = OffloadDevice::kCpu});
  part.mutable_grad() = at::ones_like(part.detach());
  later.options().capturable = true;
  EXPECT_THAT(
      error_of([&] { later.step(); }),
      HasSubstr("capturable cannot be combined with offload_optimizer"));
}

}  // namespace
}  // namespace lockstep::optim
