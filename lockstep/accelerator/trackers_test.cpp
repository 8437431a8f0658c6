// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/trackers.h"

#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "lockstep/base/error.h"

namespace lockstep::internal {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(ImageBatches, AreBytesByRowColumnAndChannel) {
  const at::Tensor channels_first = torch::arange(12, torch::kByte).reshape({1, 3, 2, 2});
  const tracking::Images images = image_batches({{"a", channels_first}}).at("a");
  EXPECT_EQ(images.count, 1);
  EXPECT_EQ(images.height, 2);
  EXPECT_EQ(images.width, 2);
  EXPECT_EQ(images.channels, 3);
  EXPECT_THAT(images.pixels, ElementsAre(0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11));
}

TEST(ImageBatches, FloatsFromZeroToOneAreScaledAndClamped) {
  const float infinity = std::numeric_limits<float>::infinity();
  const at::Tensor row = torch::tensor({{-1.0F, 0.0F, 0.5F, 1.0F, 3.0F, infinity, std::nanf("")}});
  const tracking::Images images = image_batches({{"a", row}}).at("a");
  EXPECT_EQ(images.channels, 1);
  EXPECT_EQ(images.width, 7);
  EXPECT_THAT(images.pixels, ElementsAre(0, 0, 128, 255, 255, 255, 0));
}

TEST(ImageBatches, RefusesShapesAndDtypesThatAreNoImages) {
  const std::vector<at::Tensor> bad = {
      torch::zeros({4}),
      torch::zeros({2, 5, 5}),
      torch::zeros({1, 1, 3, 5, 5}),
      torch::zeros({3, 0, 4}),
      torch::zeros({3, 4, 4}, torch::kInt)};
  for (const at::Tensor& tensor : bad) {
    EXPECT_THAT(
        [&] {
          image_batches({{"samples", tensor}});
        },
        ThrowsMessage<ConfigError>(
            AllOf(HasSubstr("'samples' is no batch of images"), HasSubstr("[N, C, H, W]"))));
  }
}

TEST(TrackedHistograms, CountElementsOfAnyRealDtype) {
  for (const auto dtype : {torch::kInt, torch::kBFloat16, torch::kDouble}) {
    const at::Tensor values =
        torch::tensor({{0, 1}, {2, 4}}).to(dtype).requires_grad_(dtype != torch::kInt);
    const tracking::Histogram histogram = histograms({{"w", values}}).at("w");
    EXPECT_EQ(histogram.count, 4);
    EXPECT_EQ(histogram.max, 4);
    EXPECT_EQ(histogram.counts.size(), 64U);
  }
}

TEST(TrackedHistograms, RefuseEmptyAndComplexTensors) {
  for (const at::Tensor& tensor : {torch::zeros({0}), torch::zeros({2}, torch::kComplexFloat)}) {
    EXPECT_THAT(
        [&] {
          histograms({{"w", tensor}});
        },
        ThrowsMessage<ConfigError>(HasSubstr("'w' cannot be counted")));
  }
}

}  // namespace
}  // namespace lockstep::internal
