// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace examples {

/// Holds a picture of red, green and blue bytes, row by row.
struct Picture {
  int width = 0;
  int height = 0;
  std::vector<uint8_t> rgb;

  Picture(int width_px, int height_px, uint8_t grey = 255);
  /// Fills a rectangle, clipped to the picture.
  void fill(int x, int y, int width_px, int height_px, uint8_t red, uint8_t green, uint8_t blue);
};

/// Writes `picture` as PNG. Throws ConfigError, naming the path, if it cannot.
void write_png(const std::string& path, const Picture& picture);

}  // namespace examples
