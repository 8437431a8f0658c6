// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "examples/common/png.h"

namespace examples {

struct Colour {
  uint8_t red = 0;
  uint8_t green = 0;
  uint8_t blue = 0;
};

/// Height of a line of text in pixels, with room for descenders.
constexpr int text_height(int scale) {
  return 9 * scale;
}
/// Width of a text in pixels.
int text_width(const std::string& text, int scale);

/// Draws one line of text, its upper left corner at (x, y), clipped to the picture. A character has
/// 5 x 9 squares of `scale` pixels. Letters, digits and common punctuation have a shape; other
/// characters are drawn as a question mark.
void draw_text(Picture& picture, int x, int y, const std::string& text, int scale, Colour colour);

}  // namespace examples
