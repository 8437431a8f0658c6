// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/dataset/idx.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <zlib.h>

#include <ATen/ops/from_blob.h>

#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

constexpr uint8_t kUnsignedByte = 0x08;
constexpr int kMaxDims = 8;
constexpr int64_t kFirstBytes = int64_t{1} << 20;
constexpr int64_t kMaxRead = int64_t{1} << 24;  // gzread counts bytes in int.

/// A file read through zlib, which also reads uncompressed files.
class GzipFile {
 public:
  explicit GzipFile(const std::string& path) : path_(path), file_(gzopen(path.c_str(), "rb")) {
    if (file_ == nullptr) {
      fail(fmt::format("cannot be opened; {}", std::generic_category().message(errno)));
    }
    gzbuffer(file_, 1 << 18);
  }
  ~GzipFile() { gzclose(file_); }
  GzipFile(const GzipFile&) = delete;
  GzipFile& operator=(const GzipFile&) = delete;

  [[noreturn]] void fail(const std::string& what) const { throw ConfigError(path_, what); }

  /// Reads into `bytes` until it is full or the file ends. Returns the number of bytes read.
  int64_t read(std::span<uint8_t> bytes) {
    int64_t total = 0;
    while (total < std::ssize(bytes)) {
      const auto step = static_cast<unsigned>(std::min(std::ssize(bytes) - total, kMaxRead));
      const int got = gzread(file_, bytes.data() + total, step);
      int code = Z_OK;
      const char* reason = gzerror(file_, &code);
      // For a truncated gzip stream, gzread returns the bytes it has and sets Z_BUF_ERROR.
      if (got < 0 || code == Z_BUF_ERROR) {
        fail(fmt::format(
            "is damaged or truncated; {} after {} bytes; try to download it again",
            code == Z_ERRNO ? std::generic_category().message(errno) : reason,
            offset_ + total + std::max(got, 0)));
      }
      if (got == 0) {
        break;
      }
      total += got;
    }
    offset_ += total;
    return total;
  }

 private:
  std::string path_;
  gzFile file_;
  int64_t offset_ = 0;
};

struct Header {
  std::vector<int64_t> shape;
  int64_t bytes = 1;  ///< Size of the contents.
};

Header read_header(GzipFile& file, const IdxOptions& options) {
  std::array<uint8_t, 4> magic{};
  const int64_t got = file.read(magic);
  if (got < 4 || magic[0] != 0 || magic[1] != 0) {
    file.fail(fmt::format(
        "is not an IDX file; it begins with [{:02x}], expected [00, 00, 08, number of dimensions]",
        fmt::join(magic.begin(), magic.begin() + got, ", ")));
  }
  if (magic[2] != kUnsignedByte) {
    file.fail(fmt::format(
        "holds IDX elements of another type; got type byte {:02x}, expected 08 (unsigned bytes)",
        magic[2]));
  }
  if (magic[3] < 1 || magic[3] > kMaxDims) {
    file.fail(
        fmt::format("is not an IDX file; got {} dimensions, expected 1 to {}", magic[3], kMaxDims));
  }
  Header header;
  for (int dim = 0; dim < magic[3]; ++dim) {
    std::array<uint8_t, 4> size{};
    if (file.read(size) < 4) {
      file.fail(
          fmt::format("ends inside its header; expected {} dimensions of 4 bytes each", magic[3]));
    }
    header.shape.push_back(
        int64_t{size[0]} << 24 | int64_t{size[1]} << 16 | int64_t{size[2]} << 8 | int64_t{size[3]});
  }
  int64_t extent = 1;  // Counts a zero as one: an empty tensor with huge strides is refused too.
  for (const int64_t size : header.shape) {
    if (extent > options.max_bytes / std::max<int64_t>(size, 1)) {
      file.fail(fmt::format(
          "is too large; got shape [{}] in its header, expected at most {} bytes; raise max_bytes "
          "if the file is right",
          fmt::join(header.shape, ", "),
          options.max_bytes));
    }
    extent *= std::max<int64_t>(size, 1);
    header.bytes *= size;
  }
  return header;
}

}  // namespace

at::Tensor read_idx(const std::string& path, const IdxOptions& options) {
  GzipFile file(path);
  const Header header = read_header(file, options);

  auto contents = std::make_unique<std::vector<uint8_t>>();
  int64_t got = 0;
  while (got < header.bytes) {
    const int64_t target = std::min(header.bytes, std::max(kFirstBytes, 2 * got));
    contents->reserve(static_cast<size_t>(target));
    contents->resize(static_cast<size_t>(target));
    const int64_t more = file.read(std::span(*contents).subspan(static_cast<size_t>(got)));
    got += more;
    if (got < target) {
      file.fail(fmt::format(
          "is truncated; got {} bytes after the header, expected {} for shape [{}]",
          got,
          header.bytes,
          fmt::join(header.shape, ", ")));
    }
  }
  std::array<uint8_t, 1> extra{};
  if (file.read(extra) != 0) {
    file.fail(fmt::format(
        "has extra bytes at its end; expected {} bytes after the header for shape [{}]",
        header.bytes,
        fmt::join(header.shape, ", ")));
  }

  std::vector<uint8_t>* owned = contents.release();
  return at::from_blob(
      owned->data(),
      header.shape,
      [owned](void*) { delete owned; },
      at::TensorOptions().dtype(at::kByte));
}

}  // namespace lockstep::data
