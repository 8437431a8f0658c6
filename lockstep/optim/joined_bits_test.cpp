// SPDX-License-Identifier: Apache-2.0
// Every rule gives the same bits whichever parameters could be joined: replicas rely on it.
#include <algorithm>
#include <string>

#include <gtest/gtest.h>

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
#include "lockstep/optim/test_parameters.h"

namespace lockstep::optim {
namespace {

/// Of sizes below, at and above a vector, none a multiple of one but the last.
Parameters odd_parameters(at::ScalarType type) {
  Parameters parameters;
  for (const int64_t numel : {7, 13, 1, 33, 5, 4099, 64}) {
    const at::Tensor values = at::arange(numel, type).mul_(0.37).add_(numel).sin_();
    parameters.push_back(values.detach().requires_grad_());
  }
  return parameters;
}

/// Ten steps, the gradients `shift` elements into a buffer, in the order that joins them.
template <typename Optimizer>
size_t train_in_buffer(Optimizer& optimizer, const Parameters& parameters, int64_t shift) {
  const auto plans = flat::plan_buckets(parameters, 1 << 20, 1 << 20);
  size_t runs = 0;
  for (int64_t t = 0; t < 10; ++t) {
    for (const flat::BucketPlan& plan : plans) {
      const at::Tensor buffer = at::zeros({plan.numel + shift}, parameters[0].detach().options());
      for (const flat::BucketEntry& entry : plan.entries) {
        const at::Tensor& parameter = parameters[entry.parameter];
        parameter.mutable_grad() = buffer.narrow(0, entry.offset + shift, parameter.numel());
        parameter.grad().copy_(
            at::arange(parameter.numel(), buffer.options()).mul_(0.7).add_(t).cos_());
      }
    }
    optimizer.step();
    runs = std::max(runs, optimizer.run_count());
  }
  return runs;
}

template <typename Optimizer>
void expect_same_however_joined(const typename Optimizer::Options& options) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    SCOPED_TRACE(std::string(c10::toString(type)));
    const Parameters joined = odd_parameters(type);
    Optimizer one(joined, options);
    const size_t joined_runs = train_in_buffer(one, joined, 0);

    const Parameters apart = odd_parameters(type);
    Parameters views;  // A parameter with a view is not moved to a flat buffer.
    for (const at::Tensor& parameter : apart) {
      views.push_back(parameter.detach());
    }
    Optimizer many(apart, options);
    EXPECT_EQ(train_in_buffer(many, apart, 0), apart.size());
    if (one.traits().elementwise) {
      EXPECT_LT(joined_runs, apart.size());
    }
    const Parameters shifted = odd_parameters(type);
    Optimizer odd(shifted, options);
    train_in_buffer(odd, shifted, 3);

    const Parameters some = odd_parameters(type);
    const at::Tensor alias = some[3].detach();
    Optimizer partly(some, options);
    train_in_buffer(partly, some, 0);

    expect_same(apart, joined);
    expect_same(shifted, joined);
    expect_same(some, joined);
    for (size_t field = 0; field < one.traits().fields.size(); ++field) {
      for (size_t k = 0; k < joined.size(); ++k) {
        const at::Tensor state = one.state_of(joined[k]).fields[field];
        EXPECT_TRUE(!state.defined() || at::equal(state, many.state_of(apart[k]).fields[field]));
      }
    }
  }
}

TEST(FlatOptimizer, IsBitExactForEveryGroupingOfParameters) {
  expect_same_however_joined<SGD>({.lr = 0.1});
  expect_same_however_joined<SGD>({.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01});
  expect_same_however_joined<SGD>({.lr = 0.1, .momentum = 0.9, .dampening = 0.3, .maximize = true});
  expect_same_however_joined<SGD>(
      {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true});
  expect_same_however_joined<Adam>({.weight_decay = 0.1});
  expect_same_however_joined<Adam>({.betas = {0.3, 0.9}, .amsgrad = true, .maximize = true});
  expect_same_however_joined<AdamW>({});
  expect_same_however_joined<AdamW>({.amsgrad = true});
  expect_same_however_joined<Adagrad>({.lr = 0.1, .lr_decay = 0.1, .weight_decay = 0.1});
  expect_same_however_joined<RMSprop>({.weight_decay = 0.1, .momentum = 0.9, .centered = true});
  expect_same_however_joined<RMSprop>({.maximize = true});
  expect_same_however_joined<Adadelta>({.weight_decay = 0.1});
  expect_same_however_joined<Adamax>({.weight_decay = 0.1, .maximize = true});
  expect_same_however_joined<NAdam>({.weight_decay = 0.1});
  expect_same_however_joined<RAdam>({.betas = {0.9, 0.8}, .weight_decay = 0.1});
  expect_same_however_joined<ASGD>({.lr = 0.1, .lambd = 0.1, .t0 = 3});
  expect_same_however_joined<Rprop>({.lr = 0.1});
  expect_same_however_joined<AdamW>({.bias_correction = false});
  expect_same_however_joined<Lion>({.lr = 0.01, .weight_decay = 0.1});
  expect_same_however_joined<Adafactor>({.lr = 0.1, .weight_decay = 0.1});
  expect_same_however_joined<LAMB>({.lr = 0.1, .weight_decay = 0.1});
}

}  // namespace
}  // namespace lockstep::optim
