// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/clip.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "lockstep/base/error.h"

namespace lockstep::optim {
namespace {

using Tensors = std::vector<at::Tensor>;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

at::Tensor parameter_with(const at::Tensor& gradient) {
  at::Tensor parameter = at::zeros_like(gradient).requires_grad_();
  parameter.mutable_grad() = gradient.clone();
  return parameter;
}

/// Of several shapes; one without a gradient, one empty.
Tensors parameters_to_clip(at::ScalarType dtype = at::kFloat) {
  at::manual_seed(5);
  Tensors parameters;
  for (const std::vector<int64_t>& shape :
       std::vector<std::vector<int64_t>>{{3, 4}, {7}, {2, 3, 5}, {0}, {}}) {
    parameters.push_back(parameter_with(at::randn(shape).to(dtype)));
  }
  parameters.push_back(at::zeros({5}).requires_grad_());
  return parameters;
}

Tensors gradients_of(const Tensors& parameters) {
  Tensors gradients;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.grad().defined()) {
      gradients.push_back(parameter.grad().clone());
    }
  }
  return gradients;
}

/// By the definition, element by element in double.
double slow_norm(const Tensors& tensors, double norm_type) {
  double sum = 0;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor flat = tensor.to(at::kDouble).flatten();
    for (int64_t i = 0; i < flat.numel(); ++i) {
      const double value = std::abs(flat[i].item<double>());
      sum = std::isinf(norm_type) ? std::max(sum, value) : sum + std::pow(value, norm_type);
    }
  }
  return std::isinf(norm_type) ? sum : std::pow(sum, 1 / norm_type);
}

class NormTest : public ::testing::TestWithParam<double> {};
INSTANTIATE_TEST_SUITE_P(Types, NormTest, ::testing::Values(2.0, 1.0, 3.0, 0.5, kInfinity));

TEST_P(NormTest, IsThatOfAllGradientsAsOneVector) {
  const Tensors parameters = parameters_to_clip();
  const double expected = slow_norm(gradients_of(parameters), GetParam());
  const at::Tensor norm = grad_norm(parameters, GetParam());
  EXPECT_EQ(norm.dim(), 0);
  EXPECT_NEAR(norm.item<double>(), expected, 1e-5 * expected);
}

TEST_P(NormTest, ClippingScalesAsTorchDoesAndReturnsTheNormBefore) {
  const Tensors parameters = parameters_to_clip();
  const Tensors before = gradients_of(parameters);
  const double norm = slow_norm(before, GetParam());
  const double max_norm = 0.3;
  EXPECT_NEAR(clip_grad_norm_(parameters, max_norm, GetParam()).item<double>(), norm, 1e-5 * norm);
  const Tensors after = gradients_of(parameters);
  for (size_t i = 0; i < after.size(); ++i) {
    EXPECT_TRUE(at::allclose(after[i], before[i] * (max_norm / (norm + 1e-6)), 1e-5, 1e-7));
  }
  EXPECT_NEAR(grad_norm(parameters, GetParam()).item<double>(), max_norm, 1e-5);
}

TEST(ClipGradNorm, LeavesSmallGradientsBitExact) {
  const Tensors parameters = parameters_to_clip();
  const Tensors before = gradients_of(parameters);
  clip_grad_norm_(parameters, 1e3);
  clip_grad_norm_(parameters, kInfinity);
  const Tensors after = gradients_of(parameters);
  for (size_t i = 0; i < after.size(); ++i) {
    EXPECT_TRUE(at::equal(after[i], before[i]));
  }
}

TEST(ClipGradNorm, DoesNotWriteToGradientsOnTheHostThatAreSmallEnough) {
  const Tensors parameters = {parameter_with(at::ones({4}))};
  const auto version = parameters[0].grad()._version();
  clip_grad_norm_(parameters, 2.1);
  EXPECT_EQ(parameters[0].grad()._version(), version);
  clip_grad_norm_(parameters, 1.9);
  EXPECT_GT(parameters[0].grad()._version(), version);
}

TEST(ClipGradNorm, ClipsGradientsInPlaceInTheirBuffer) {
  const at::Tensor buffer = at::full({6}, 2.0F);
  Tensors parameters = {at::zeros({2}).requires_grad_(), at::zeros({4}).requires_grad_()};
  parameters[0].mutable_grad() = buffer.narrow(0, 0, 2);
  parameters[1].mutable_grad() = buffer.narrow(0, 2, 4);
  clip_grad_norm_(parameters, 1.0);
  EXPECT_NEAR(buffer.norm().item<double>(), 1.0, 1e-5);
  EXPECT_EQ(parameters[1].grad().const_data_ptr<float>(), buffer.const_data_ptr<float>() + 2);
}

TEST(ClipGradNorm, CountsAParameterGivenTwiceOnce) {
  const at::Tensor parameter = parameter_with(at::full({4}, 3.0F));
  EXPECT_EQ(clip_grad_norm_({parameter, parameter}, 3.0).item<float>(), 6.0F);
  EXPECT_NEAR(parameter.grad()[0].item<double>(), 1.5, 1e-5);
}

TEST(ClipGradNorm, MixesDtypesAndAccumulatesHalvesInFp32) {
  // 300^2 * 3 is infinite in fp16, and 1 + 2^-9 ones are lost in bf16.
  const Tensors parameters = {
      parameter_with(at::full({3}, 300.0F).to(at::kHalf)),
      parameter_with(at::ones({513}).to(at::kBFloat16)),
      parameter_with(at::full({2}, 2.0F))};
  const double expected = slow_norm(gradients_of(parameters), 2);
  const at::Tensor norm = clip_grad_norm_(parameters, 10);
  EXPECT_EQ(norm.scalar_type(), at::kFloat);
  EXPECT_NEAR(norm.item<double>(), expected, 1e-5 * expected);
  EXPECT_EQ(parameters[0].grad().scalar_type(), at::kHalf);
  EXPECT_NEAR(parameters[0].grad()[0].item<double>(), 300 * 10 / expected, 1e-2);
  const Tensors with_double = {
      parameter_with(at::ones({3}, at::kDouble)), parameter_with(at::ones({1}))};
  EXPECT_EQ(grad_norm(with_double).scalar_type(), at::kDouble);
  EXPECT_DOUBLE_EQ(grad_norm(with_double).item<double>(), 2.0);
}

TEST(ClipGradNorm, WithoutGradientsIsZero) {
  EXPECT_EQ(clip_grad_norm_({}, 1.0).item<float>(), 0);
  EXPECT_EQ(clip_grad_norm_({at::ones({2}).requires_grad_()}, 1.0).item<float>(), 0);
  EXPECT_EQ(grad_norm({parameter_with(at::zeros({0}))}, kInfinity).item<float>(), 0);
}

TEST(ClipGradNorm, ANonFiniteNormIsReturnedOrOnRequestAnError) {
  for (const double bad : {kInfinity, std::numeric_limits<double>::quiet_NaN()}) {
    const at::Tensor parameter = parameter_with(at::full({2}, bad, at::kFloat));
    EXPECT_THROW(clip_grad_norm_({parameter}, 1.0, 2.0, true), ConfigError);
    EXPECT_TRUE(at::equal(parameter.grad().nan_to_num(7), at::full({2}, bad).nan_to_num(7)))
        << "refused, so nothing was changed";
    EXPECT_FALSE(std::isfinite(clip_grad_norm_({parameter}, 1.0).item<double>()));
  }
}

TEST(ClipGradNorm, TracksNoGradientItself) {
  const Tensors parameters = parameters_to_clip();
  EXPECT_FALSE(clip_grad_norm_(parameters, 0.1).requires_grad());
  EXPECT_FALSE(weight_norm(parameters).requires_grad());
}

TEST(ClipGradNorm, RefusesValuesWithoutSenseAndSparseGradients) {
  const Tensors parameters = parameters_to_clip();
  EXPECT_THROW(clip_grad_norm_(parameters, -1.0), ConfigError);
  EXPECT_THROW(clip_grad_norm_(parameters, std::numeric_limits<double>::quiet_NaN()), ConfigError);
  EXPECT_THROW(clip_grad_norm_(parameters, 1.0, 0.0), ConfigError);
  EXPECT_THROW(grad_norm(parameters, -kInfinity), ConfigError);
  EXPECT_THROW(clip_grad_value_(parameters, -1.0), ConfigError);
  at::Tensor sparse = at::zeros({3}).requires_grad_();
  sparse.mutable_grad() = at::ones({3}).to_sparse();
  EXPECT_THROW(grad_norm({sparse}), ConfigError);
}

TEST(ClipGradNorm, ClipsAGradientThatWasExpanded) {
  at::Tensor parameter = at::zeros({4}).requires_grad_();
  parameter.mutable_grad() = at::full({1}, 3.0F).expand({4});
  EXPECT_EQ(clip_grad_norm_({parameter}, 3.0).item<float>(), 6.0F);
  EXPECT_TRUE(at::allclose(parameter.grad(), at::full({4}, 1.5F)));
  parameter.mutable_grad() = at::full({1}, 3.0F).expand({4});
  clip_grad_value_({parameter}, 1.0);
  EXPECT_TRUE(at::equal(parameter.grad(), at::ones({4})));
}

TEST(WeightNorm, IsThatOfAllParameters) {
  const Tensors weights = {at::full({2, 2}, 3.0F).requires_grad_(), at::full({1}, 8.0F)};
  EXPECT_EQ(weight_norm(weights).item<float>(), 10.0F);
  EXPECT_EQ(weight_norm(weights, kInfinity).item<float>(), 8.0F);
}

TEST(ClipGradValue, LimitsEveryElement) {
  const Tensors parameters = {
      parameter_with(at::tensor({-2.0F, -0.5F, 0.25F, 3.0F})),
      parameter_with(at::tensor({5.0}, at::kDouble)),
      at::zeros({1}).requires_grad_()};
  clip_grad_value_(parameters, 1.0);
  EXPECT_TRUE(at::equal(parameters[0].grad(), at::tensor({-1.0F, -0.5F, 0.25F, 1.0F})));
  EXPECT_EQ(parameters[1].grad().item<double>(), 1.0);
}

}  // namespace
}  // namespace lockstep::optim
