// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "lockstep/flat/bucket_plan.h"
#include "lockstep/flat/grad_bucket.h"
#include "lockstep/optim/state/optimizer_state.h"

namespace lockstep::optim {

using Parameters = std::vector<at::Tensor>;

/// The parameters and gradients of tests/golden/make_optimizers.py.
inline const std::vector<std::vector<int64_t>> kShapes = {{3, 5}, {7}, {}, {2, 3, 2, 2}, {4, 1}};

inline at::Tensor numbers(
    at::IntArrayRef shape, int64_t first, int64_t step, int64_t modulus, double scale) {
  const at::Tensor index = at::arange(c10::multiply_integers(shape), at::kLong);
  const at::Tensor values = (index * step + first).remainder(modulus) - modulus / 2;
  return (values.to(at::kDouble) / scale).reshape(shape);
}

inline Parameters make_parameters(at::ScalarType type = at::kFloat) {
  Parameters parameters;
  for (size_t k = 0; k < kShapes.size(); ++k) {
    parameters.push_back(numbers(kShapes[k], 3 * static_cast<int64_t>(k), 5, 11, 4)
                             .to(type)
                             .clone()
                             .requires_grad_());
  }
  return parameters;
}

/// Undefined: parameter k takes no part in step t.
inline at::Tensor gradient(size_t k, int64_t t, at::ScalarType type = at::kFloat) {
  if ((k == 1 && t % 3 == 1) || (k == 3 && t < 10)) {
    return {};
  }
  const int64_t first = 13 * t + 29 * static_cast<int64_t>(k);
  return (numbers(kShapes[k], first, 7, 18, 8) + 1.0 / 16).to(type);
}

/// Gradients as autograd makes them: a tensor each.
inline void put_gradients(const Parameters& parameters, int64_t t) {
  for (size_t k = 0; k < parameters.size(); ++k) {
    parameters[k].mutable_grad() = gradient(k, t, parameters[k].scalar_type());
  }
}

/// Gradients as DataParallel keeps them: views into flat buckets.
class Buckets {
 public:
  explicit Buckets(const Parameters& parameters, int64_t cap_bytes = 1 << 20)
      : parameters_(parameters) {
    for (flat::BucketPlan& plan : flat::plan_buckets(parameters, cap_bytes, cap_bytes)) {
      buckets_.emplace_back(std::move(plan), parameters);
    }
  }

  /// What `gradient` says, or, with `all`, a gradient for every parameter in every step.
  void put(int64_t t, bool all = false) {
    for (flat::GradBucket& bucket : buckets_) {
      for (size_t slot = 0; slot < bucket.entries().size(); ++slot) {
        const auto k = static_cast<size_t>(bucket.entries()[slot].parameter);
        const at::Tensor value = gradient(k, all ? 3 * t + 12 : t, parameters_[k].scalar_type());
        if (value.defined()) {
          bucket.view(slot).copy_(value);
        }
        parameters_[k].mutable_grad() = value.defined() ? bucket.view(slot) : at::Tensor();
      }
    }
  }
  size_t count() const { return buckets_.size(); }

 private:
  Parameters parameters_;
  std::vector<flat::GradBucket> buckets_;
};

inline void expect_same(const Parameters& a, const Parameters& b) {
  for (size_t k = 0; k < a.size(); ++k) {
    EXPECT_TRUE(at::equal(a[k], b[k])) << "parameter " << k;
  }
}

/// "p0", "p1", ... by position.
inline ParameterName namer(const Parameters& parameters) {
  return [parameters](const at::Tensor& parameter) {
    size_t k = 0;
    while (!parameters.at(k).is_same(parameter)) {
      ++k;
    }
    return "p" + std::to_string(k);
  };
}

}  // namespace lockstep::optim
