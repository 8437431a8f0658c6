// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/dataset/idx_images.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Functions.h>

#include "lockstep/base/error.h"
#include "lockstep/data/sample/dataset.h"
#include "lockstep/data/test_files.h"

namespace lockstep::data {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

static_assert(Dataset<IdxImages>);

std::string counting(size_t bytes) {
  std::string contents(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) {
    contents[i] = static_cast<char>(i);
  }
  return contents;
}

TEST(IdxImages, NormalisesAsTorchvisionDoes) {
  const TestFolder folder;
  const std::string images = write_file(folder, "images", idx({3, 16, 16}, counting(768)));
  const std::string labels = write_file(folder, "labels", idx({3}, std::string("\x09\x00\xff", 3)));
  const IdxImages dataset(images, labels, {.mean = 0.2860F, .stddev = 0.3530F});
  EXPECT_EQ(dataset.size(), 3);

  const std::vector<int64_t> indices = {2, 0};
  const Batch batch = dataset.get_batch(indices);
  const at::Tensor pixels =
      at::arange(256).to(at::kFloat).reshape({1, 1, 16, 16}).expand({2, 1, 16, 16});
  const at::Tensor expected = pixels.div(255).sub(at::tensor(0.2860F)).div(at::tensor(0.3530F));
  EXPECT_TRUE(at::equal(batch.data, expected));
  EXPECT_TRUE(at::equal(batch.target, at::tensor({255, 9}, at::kLong)));
}

TEST(IdxImages, RefusesFilesThatDoNotBelongTogether) {
  const TestFolder folder;
  const std::string images = write_file(folder, "images", idx({3, 2, 2}, counting(12)));
  const std::string flat = write_file(folder, "flat", idx({12}, counting(12)));
  const std::string two = write_file(folder, "two", idx({2}, counting(2)));
  EXPECT_THAT(
      [&] { IdxImages(images, two); },
      ThrowsMessage<ConfigError>(HasSubstr("of shape [2], expected [3]")));
  EXPECT_THAT(
      [&] { IdxImages(flat, two); },
      ThrowsMessage<ConfigError>(HasSubstr("got shape [12], expected [N, H, W]")));
  EXPECT_THAT(
      [&] { IdxImages(images, images); },
      ThrowsMessage<ConfigError>(HasSubstr("does not belong to")));
  EXPECT_THAT(
      [&] { IdxImages(images, two, {.stddev = 0}); },
      ThrowsMessage<ConfigError>(HasSubstr("stddev makes no sense")));
}

TEST(IdxImages, RefusesAnIndexOutsideTheData) {
  const TestFolder folder;
  const IdxImages dataset(
      write_file(folder, "images", idx({2, 1, 1}, counting(2))),
      write_file(folder, "labels", idx({2}, counting(2))));
  const std::vector<int64_t> indices = {2};
  EXPECT_THROW(dataset.get_batch(indices), ConfigError);
}

}  // namespace
}  // namespace lockstep::data
