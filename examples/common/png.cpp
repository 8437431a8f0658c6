// SPDX-License-Identifier: Apache-2.0
#include "examples/common/png.h"

#include <algorithm>
#include <fstream>

#include <zlib.h>

#include "lockstep/base/error.h"

namespace examples {
namespace {

void append_big_endian(std::string& out, uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) {
    out += static_cast<char>(value >> shift & 0xff);
  }
}

std::string chunk(const std::string& type, const std::string& data) {
  std::string out;
  append_big_endian(out, static_cast<uint32_t>(data.size()));
  const std::string body = type + data;
  out += body;
  append_big_endian(
      out,
      static_cast<uint32_t>(
          crc32(0, reinterpret_cast<const Bytef*>(body.data()), static_cast<uInt>(body.size()))));
  return out;
}

}  // namespace

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
  std::string rows;
  const size_t row_bytes = static_cast<size_t>(picture.width) * 3;
  for (int row = 0; row < picture.height; ++row) {
    rows += '\0';  // Each row begins with its filter: none.
    rows.append(reinterpret_cast<const char*>(&picture.rgb[row * row_bytes]), row_bytes);
  }
  uLongf packed_bytes = compressBound(rows.size());
  std::string packed(packed_bytes, '\0');
  compress(
      reinterpret_cast<Bytef*>(packed.data()),
      &packed_bytes,
      reinterpret_cast<const Bytef*>(rows.data()),
      rows.size());
  packed.resize(packed_bytes);
  std::string header;
  append_big_endian(header, static_cast<uint32_t>(picture.width));
  append_big_endian(header, static_cast<uint32_t>(picture.height));
  header += std::string("\x08\x02\x00\x00\x00", 5);  // 8 bits a channel, RGB, no interlacing.
  std::ofstream file(path, std::ios::binary);
  file << "\x89PNG\r\n\x1a\n"
       << chunk("IHDR", header) << chunk("IDAT", packed) << chunk("IEND", "");
  file.close();
  if (!file) {
    throw lockstep::ConfigError("output", path + " cannot be written");
  }
}

}  // namespace examples
