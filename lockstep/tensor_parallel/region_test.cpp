// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor_parallel/region.h"

#include <gmock/gmock.h>

#include <ATen/Functions.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/thread/ranks.h"

namespace lockstep::tensor_parallel {
namespace {

/// A tensor (2, 4, 6) of this rank that requires a gradient.
at::Tensor input_of(const Group& group) {
  return (at::arange(48, at::kDouble).view({2, 4, 6}) * (group.rank() + 1)).requires_grad_();
}

/// The sum of both ranks' inputs.
at::Tensor sum_of_inputs() {
  return at::arange(48, at::kDouble).view({2, 4, 6}) * 3;
}

/// Weights that make each element's gradient different.
at::Tensor weights(const at::Tensor& like) {
  return at::arange(like.numel(), at::kDouble).view(like.sizes());
}

TEST(Region, CopyingAddsTheGradients) {
  ranks(2, [](const Group& group) {
    const at::Tensor input = input_of(group);
    const at::Tensor output = copy_to_ranks(input, group);
    EXPECT_TRUE(at::equal(output, input));
    (output * (group.rank() + 1)).sum().backward();
    EXPECT_TRUE(at::equal(input.grad(), at::full_like(input, 3)));
  });
}

TEST(Region, TheSumsGradientIsThatOfEachPart) {
  ranks(2, [](const Group& group) {
    const at::Tensor input = input_of(group);
    const at::Tensor output = sum_over_ranks(input, group);
    EXPECT_TRUE(at::equal(output, sum_of_inputs()));
    (output * weights(output)).sum().backward();
    EXPECT_TRUE(at::equal(input.grad(), weights(output)));
  });
}

TEST(Region, GatheredColumnsHaveTheirOwnGradient) {
  ranks(2, [](const Group& group) {
    const at::Tensor input = input_of(group);
    const at::Tensor output = gather_columns(input, group);
    ASSERT_EQ(output.sizes(), at::IntArrayRef({2, 4, 12}));
    EXPECT_TRUE(at::equal(output.narrow(2, 6 * group.rank(), 6), input));
    (output * weights(output)).sum().backward();
    EXPECT_TRUE(at::equal(input.grad(), weights(output).narrow(2, 6 * group.rank(), 6)));
  });
}

TEST(Region, AGatheredSequenceAddsGradients) {
  for (const int64_t dim : {0, 1, -2}) {
    ranks(2, [&](const Group& group) {
      const at::Tensor input = input_of(group);
      const at::Tensor output = gather_sequence(input, dim, group);
      const int64_t size = input.size(dim);
      ASSERT_EQ(output.size(dim), 2 * size);
      EXPECT_TRUE(at::equal(output.narrow(dim, size * group.rank(), size), input));
      (output * weights(output) * (group.rank() + 1)).sum().backward();
      EXPECT_TRUE(
          at::equal(input.grad(), weights(output).narrow(dim, size * group.rank(), size) * 3));
    });
  }
}

TEST(Region, AScatteredSumGathersGradients) {
  for (const int64_t dim : {0, 1, -2}) {
    ranks(2, [&](const Group& group) {
      const at::Tensor input = input_of(group);
      const at::Tensor output = scatter_sum(input, dim, group);
      const int64_t size = input.size(dim) / 2;
      EXPECT_TRUE(at::equal(output, sum_of_inputs().narrow(dim, size * group.rank(), size)));
      const at::Tensor own = weights(input).narrow(dim, size * group.rank(), size);
      (output * own).sum().backward();
      EXPECT_TRUE(at::equal(input.grad(), weights(input)));
    });
  }
}

TEST(Region, AnOwnPartGathersGradients) {
  ranks(2, [](const Group& group) {
    const at::Tensor input = at::arange(48, at::kDouble).view({2, 4, 6}).requires_grad_();
    const at::Tensor output = own_part(input, 1, group);
    EXPECT_TRUE(at::equal(output, input.narrow(1, 2 * group.rank(), 2)));
    (output * weights(input).narrow(1, 2 * group.rank(), 2)).sum().backward();
    EXPECT_TRUE(at::equal(input.grad(), weights(input)));
    EXPECT_THROW(own_part(at::ones({2, 3, 6}), 1, group), ConfigError);
    EXPECT_THROW(scatter_sum(at::ones({6}), -2, group), ConfigError);
  });
}

}  // namespace
}  // namespace lockstep::tensor_parallel
