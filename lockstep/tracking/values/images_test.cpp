// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/values/images.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep::tracking {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

// tracker_real_test.cpp reads images of 1, 3 and 4 channels back through TensorBoard and Pillow.
TEST(Png, HasSizeDepthAndColourInItsHeader) {
  const Images images{1, 2, 3, 4, std::vector<uint8_t>(24, 7)};
  const std::string file = png(images, 0);
  EXPECT_EQ(file.substr(0, 8), "\x89PNG\r\n\x1a\n");
  EXPECT_EQ(file.substr(12, 4), "IHDR");
  EXPECT_EQ(file.substr(16, 8), std::string("\0\0\0\x03\0\0\0\x02", 8));
  EXPECT_EQ(file.substr(24, 5), std::string("\x08\x06\0\0\0", 5));
  EXPECT_EQ(file.substr(file.size() - 8, 4), "IEND");
}

TEST(Png, EachImageOfABatchIsItsOwnFile) {
  const Images images{2, 1, 1, 1, {0, 255}};
  EXPECT_NE(png(images, 0), png(images, 1));
  EXPECT_EQ(png(images, 1), png({1, 1, 1, 1, {255}}, 0));
}

TEST(CheckImages, RefusesSizesThatDoNotFit) {
  EXPECT_NO_THROW(check_images("ok", {1, 1, 2, 3, std::vector<uint8_t>(6)}));
  const std::vector<Images> bad = {
      {0, 1, 1, 1, {}},
      {1, 0, 1, 1, {}},
      {1, 1, 1, 2, std::vector<uint8_t>(2)},
      {1, 1, 2, 3, std::vector<uint8_t>(5)}};
  for (const Images& images : bad) {
    EXPECT_THAT(
        [&] { check_images("samples", images); },
        ThrowsMessage<ConfigError>(AllOf(
            HasSubstr("'samples' is no batch of images"),
            HasSubstr(std::to_string(images.pixels.size()) + " bytes"))));
  }
}

}  // namespace
}  // namespace lockstep::tracking
