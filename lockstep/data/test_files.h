// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fstream>
#include <string>
#include <vector>

#include <zlib.h>

#include "lockstep/base/test_folder.h"

namespace lockstep::data {

/// Writes a file in `folder` and returns its path.
inline std::string write_file(
    const TestFolder& folder, const std::string& name, const std::string& bytes) {
  std::string path = (folder / name).string();
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

inline std::string gzip(const std::string& bytes, const std::string& scratch_path) {
  gzFile file = gzopen(scratch_path.c_str(), "wb");
  gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  gzclose(file);
  std::ifstream in(scratch_path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// The bytes of an IDX file.
inline std::string idx(
    const std::vector<uint32_t>& shape, const std::string& contents, char type = 8) {
  std::string bytes = {0, 0, type, static_cast<char>(shape.size())};
  for (const uint32_t size : shape) {
    for (const int shift : {24, 16, 8, 0}) {
      bytes.push_back(static_cast<char>(size >> shift & 0xFF));
    }
  }
  return bytes + contents;
}

}  // namespace lockstep::data
