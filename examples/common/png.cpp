// SPDX-License-Identifier: Apache-2.0
#include "examples/common/png.h"

#include <algorithm>
#include <fstream>

#include "lockstep/base/error.h"
#include "lockstep/tracking/values/images.h"

namespace examples {

Picture::Picture(int width_px, int height_px, uint8_t grey)
    : width(width_px),
      height(height_px),
      rgb(static_cast<size_t>(width_px) * height_px * 3, grey) {}

void Picture::fill(
    int x, int y, int width_px, int height_px, uint8_t red, uint8_t green, uint8_t blue) {
  for (int row = std::max(y, 0); row < std::min(y + height_px, height); ++row) {
    for (int column = std::max(x, 0); column < std::min(x + width_px, width); ++column) {
      uint8_t* pixel = &rgb[(static_cast<size_t>(row) * width + column) * 3];
      pixel[0] = red;
      pixel[1] = green;
      pixel[2] = blue;
    }
  }
}

void write_png(const std::string& path, const Picture& picture) {
  const lockstep::tracking::Images image{
      .count = 1,
      .height = picture.height,
      .width = picture.width,
      .channels = 3,
      .pixels = picture.rgb};
  std::ofstream file(path, std::ios::binary);
  file << lockstep::tracking::png(image, 0);
  file.close();
  if (!file) {
    throw lockstep::ConfigError("output", path + " cannot be written");
  }
}

}  // namespace examples
