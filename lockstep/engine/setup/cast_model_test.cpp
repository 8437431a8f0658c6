// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/setup/cast_model.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

namespace lockstep {
namespace {

TEST(CastModel, ParametersFollowOneDtypeAndBuffersAnother) {
  const at::Tensor weight = at::full({2}, 1.0 / 3).set_requires_grad(true);
  const at::Tensor wide = at::ones({2}, at::kDouble);
  const at::Tensor scale = at::full({2}, 1.0 / 3);
  const at::Tensor bias = at::ones({2}, at::kHalf);
  const at::Tensor count = at::ones({1}, at::kLong);
  const NamedTensors parameters = {{"a.weight", weight}, {"b.bias", wide}, {"tied", weight}};
  const NamedTensors buffers = {{"a.scale", scale}, {"router.0.bias", bias}, {"count", count}};
  const at::Tensor same = weight;
  weight.mutable_grad() = at::ones({2});

  cast_model(parameters, buffers, {});
  EXPECT_EQ(weight.scalar_type(), at::kFloat);
  EXPECT_TRUE(weight.grad().defined());

  cast_model(
      parameters,
      buffers,
      {.parameters = at::kBFloat16, .buffers = at::kHalf, .fp32_buffers = {"router.*bias"}});
  EXPECT_EQ(weight.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(weight.requires_grad());
  EXPECT_FALSE(weight.grad().defined());
  EXPECT_TRUE(same.is_same(weight));
  EXPECT_TRUE(at::equal(weight.detach(), at::full({2}, 1.0 / 3, at::kBFloat16)));
  EXPECT_EQ(wide.scalar_type(), at::kBFloat16) << "no name keeps a parameter wide";
  EXPECT_EQ(scale.scalar_type(), at::kHalf);
  EXPECT_EQ(bias.scalar_type(), at::kFloat) << "also what came narrow";
  EXPECT_EQ(count.scalar_type(), at::kLong);
}

TEST(CastModel, GradientsArriveInTheNewDtype) {
  const at::Tensor weight = at::ones({2}).set_requires_grad(true);
  weight.sum().backward();  // Autograd has met it as float32.
  cast_model({{"weight", weight}}, {}, {.parameters = at::kHalf});
  weight.sum().backward();
  EXPECT_EQ(weight.grad().scalar_type(), at::kHalf);
}

TEST(CastModel, APatternMatchesAnyPartOfAName) {
  EXPECT_TRUE(matches_part_of("mlp.gate.e_score_correction_bias", "e_score"));
  EXPECT_TRUE(matches_part_of("mlp.gate.bias", "mlp.*.bias"));
  EXPECT_TRUE(matches_part_of("mlp.gate.bias", "*gate*"));
  EXPECT_FALSE(matches_part_of("mlp.gate.bias", "bias*mlp"));
  EXPECT_FALSE(matches_part_of("aba", "ab*ba")) << "what one part has matched is used up";
  EXPECT_FALSE(matches_part_of("gate", "gates"));
}

}  // namespace
}  // namespace lockstep
