// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <gtest/gtest.h>

#include "lockstep/base/test_errors.h"
#include "lockstep/optim/flat_optimizer.h"
#include "lockstep/optim/rules/adam.h"
#include "lockstep/optim/test_parameters.h"

namespace lockstep::optim {

inline constexpr int64_t kSteps = 12;

/// A learning rate that float32 represents exactly.
inline double rate(int64_t t) {
  return static_cast<double>(static_cast<float>(0.01 * (1 + 0.3 * static_cast<double>(t % 5))));
}

/// The gradient of parameter k in step t; never undefined.
inline at::Tensor full_gradient(size_t k, int64_t t, at::ScalarType type) {
  return gradient(k, 3 * t + 12, type);
}

/// Parameters on a device, with gradients that stay where they are.
struct Training {
  explicit Training(at::Device device, at::ScalarType type = at::kFloat) {
    for (const at::Tensor& parameter : make_parameters(type)) {
      parameters.push_back(parameter.detach().to(device).requires_grad_());
      parameters.back().mutable_grad() = at::zeros_like(parameters.back().detach());
    }
  }
  void put_gradients(int64_t t) const {
    for (size_t k = 0; k < parameters.size(); ++k) {
      if (parameters[k].grad().defined()) {
        parameters[k].mutable_grad().copy_(full_gradient(k, t, parameters[k].scalar_type()));
      }
    }
  }
  void step(FlatOptimizer& optimizer, int64_t t) const {
    put_gradients(t);
    optimizer.param_groups()[0].options().set_lr(rate(t));
    optimizer.step();
  }
  Parameters parameters;
};

/// AdamW of parameters whose gradients are in buckets.
struct BucketTraining : Training {
  BucketTraining(at::Device device, bool capturable)
      : Training(device),
        optimizer(parameters, {.lr = 0.5, .capturable = capturable}),
        buckets(parameters) {}

  AdamW optimizer;
  Buckets buckets;
};

/// `tolerance` 0: bit-exact.
inline void expect_near(const at::Tensor& got, const at::Tensor& expected, double tolerance) {
  ASSERT_EQ(got.defined(), expected.defined());
  if (!got.defined()) {
    return;
  }
  const at::Tensor a = got.detach().cpu();
  const at::Tensor b = expected.detach().cpu();
  EXPECT_TRUE(tolerance == 0 ? at::equal(a, b) : at::allclose(a, b, tolerance, tolerance))
      << (a - b).abs().max().item<double>();
}

inline void expect_same_state(
    const FlatOptimizer& got,
    const Parameters& of_got,
    const FlatOptimizer& expected,
    const Parameters& of_expected,
    double tolerance) {
  for (size_t k = 0; k < of_got.size(); ++k) {
    SCOPED_TRACE(k);
    expect_near(of_got[k], of_expected[k], tolerance);
    const auto a = got.state_of(of_got[k]);
    const auto b = expected.state_of(of_expected[k]);
    if (got.traits().counts_steps) {
      EXPECT_EQ(a.step, b.step);
    }
    for (size_t field = 0; field < a.fields.size(); ++field) {
      expect_near(a.fields[field], b.fields[field], tolerance);
    }
  }
}

}  // namespace lockstep::optim
