// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <unistd.h>
#include <vector>

#include <zlib.h>

namespace lockstep::data {

/// A folder of its own for one test, gone with it.
class TestFolder {
 public:
  TestFolder() {
    std::string path = (std::filesystem::temp_directory_path() / "lockstep-data-XXXXXX").string();
    if (mkdtemp(path.data()) == nullptr) {
      throw std::runtime_error("no temporary folder: " + path);
    }
    path_ = path;
  }
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  const std::string& path() const { return path_; }
  /// Writes a file here and returns its path.
  std::string write(const std::string& name, const std::string& bytes) const {
    std::string path = path_ + "/" + name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

 private:
  std::string path_;
};

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
