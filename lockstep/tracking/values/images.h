// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::tracking {

/// A batch of images of one size: bytes by image, row, column and channel (NHWC).
struct Images {
  int64_t count = 0;
  int64_t height = 0;
  int64_t width = 0;
  int64_t channels = 0;         ///< 1 (grey), 3 (RGB) or 4 (RGBA).
  std::vector<uint8_t> pixels;  ///< count * height * width * channels bytes.
};

/// Throws ConfigError, naming the images `name`, unless sizes, channels and number of bytes agree.
void check_images(const std::string& name, const Images& images);

/// Encodes image `index` as PNG, with 8 bits for each channel. Returns the bytes of the file.
std::string png(const Images& images, int64_t index);

}  // namespace lockstep::tracking
