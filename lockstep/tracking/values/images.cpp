// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/values/images.h"

#include <fmt/format.h>
#include <zlib.h>

#include "lockstep/base/error.h"

namespace lockstep::tracking {
namespace {

void append_big_endian(std::string& bytes, uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) {
    bytes += static_cast<char>(value >> shift & 0xffU);
  }
}

std::string png_chunk(const std::string& type, const std::string& data) {
  const std::string body = type + data;
  const auto* bytes = reinterpret_cast<const Bytef*>(body.data());
  std::string chunk;
  append_big_endian(chunk, static_cast<uint32_t>(data.size()));
  chunk += body;
  append_big_endian(
      chunk, static_cast<uint32_t>(::crc32(0, bytes, static_cast<uInt>(body.size()))));
  return chunk;
}

std::string deflated(const std::string& data) {
  uLongf size = ::compressBound(data.size());
  std::string packed(size, '\0');
  const int code = ::compress(
      reinterpret_cast<Bytef*>(packed.data()),
      &size,
      reinterpret_cast<const Bytef*>(data.data()),
      data.size());
  LOCKSTEP_ASSERT(code == Z_OK, "zlib cannot compress into a buffer of the size it asked for");
  packed.resize(size);
  return packed;
}

char colour_type(int64_t channels) {
  constexpr char kGrey = 0;
  constexpr char kRgb = 2;
  constexpr char kRgba = 6;
  return channels == 1 ? kGrey : channels == 3 ? kRgb : kRgba;
}

}  // namespace

void check_images(const std::string& name, const Images& images) {
  const int64_t bytes = images.count * images.height * images.width * images.channels;
  const bool has_channels = images.channels == 1 || images.channels == 3 || images.channels == 4;
  if (images.count < 1 || images.height < 1 || images.width < 1 || !has_channels ||
      images.pixels.size() != static_cast<size_t>(bytes)) {
    throw ConfigError(
        "log_images",
        fmt::format(
            "'{}' is no batch of images; got {} images of {} x {} pixels and {} channels in {} "
            "bytes, expected at least one pixel, 1, 3 or 4 channels, and a byte for each channel",
            name,
            images.count,
            images.height,
            images.width,
            images.channels,
            images.pixels.size()));
  }
}

std::string png(const Images& images, int64_t index) {
  const auto row_bytes = static_cast<size_t>(images.width * images.channels);
  const auto image_bytes = row_bytes * static_cast<size_t>(images.height);
  const auto* pixels = reinterpret_cast<const char*>(images.pixels.data());
  pixels += static_cast<size_t>(index) * image_bytes;
  std::string rows;
  rows.reserve(image_bytes + static_cast<size_t>(images.height));
  for (size_t at = 0; at < image_bytes; at += row_bytes) {
    rows += '\0';  // Each row begins with its filter: none.
    rows.append(pixels + at, row_bytes);
  }
  std::string header;
  append_big_endian(header, static_cast<uint32_t>(images.width));
  append_big_endian(header, static_cast<uint32_t>(images.height));
  header += '\x08';  // Bits of a channel.
  header += colour_type(images.channels);
  header.append(3, '\0');  // Deflate, adaptive filters, not interlaced.
  return "\x89PNG\r\n\x1a\n" + png_chunk("IHDR", header) + png_chunk("IDAT", deflated(rows)) +
         png_chunk("IEND", "");
}

}  // namespace lockstep::tracking
