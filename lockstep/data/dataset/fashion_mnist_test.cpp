// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/dataset/fashion_mnist.h"

#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Functions.h>

#include "lockstep/base/error.h"
#include "lockstep/data/test_files.h"

namespace lockstep::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(FashionMnist, ReadsDebiansFiles) {
  if (!std::filesystem::exists(kFashionMnistRoot)) {
    GTEST_SKIP() << "Debian's package dataset-fashion-mnist is not installed";
  }
  const IdxImages train = fashion_mnist(FashionMnistSplit::kTrain);
  const IdxImages test = fashion_mnist(FashionMnistSplit::kTest);
  EXPECT_EQ(train.images().sizes(), at::IntArrayRef({60000, 28, 28}));
  EXPECT_EQ(test.images().sizes(), at::IntArrayRef({10000, 28, 28}));
  EXPECT_TRUE(at::equal(at::bincount(train.labels()), at::full({10}, 6000, at::kLong)));
  EXPECT_TRUE(at::equal(at::bincount(test.labels()), at::full({10}, 1000, at::kLong)));

  // The default options are this set's own mean and deviation.
  const at::Tensor pixels = train.images().to(at::kFloat).div(255);
  EXPECT_NEAR(pixels.mean().item<double>(), 0.2860, 1e-4);
  EXPECT_NEAR(pixels.std().item<double>(), 0.3530, 1e-4);
}

TEST(FashionMnist, ReadsUnpackedFilesToo) {
  const TestFolder folder;
  write_file(folder, "t10k-images-idx3-ubyte", idx({1, 2, 2}, "abcd"));
  write_file(folder, "t10k-labels-idx1-ubyte", idx({1}, "\x03"));
  EXPECT_EQ(fashion_mnist(FashionMnistSplit::kTest, folder.path().string()).size(), 1);
}

TEST(FashionMnist, SaysHowToGetMissingFiles) {
  const TestFolder folder;
  EXPECT_THAT(
      [&] { fashion_mnist(FashionMnistSplit::kTrain, folder.path().string()); },
      ThrowsMessage<ConfigError>(AllOf(
          HasSubstr("train-images-idx3-ubyte"),
          HasSubstr(folder.path().string()),
          HasSubstr("apt-get install dataset-fashion-mnist"))));
}

}  // namespace
}  // namespace lockstep::data
