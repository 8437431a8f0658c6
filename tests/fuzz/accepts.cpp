// SPDX-License-Identifier: Apache-2.0
//
// Parses safetensors files for differential.py. Reads files from stdin, each after its length in 8
// little-endian bytes, and prints the result of each as a line of JSON.
#include <cstdint>
#include <cstdio>
#include <string>

#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/program/run_main.h"
#include "lockstep/storage/safetensors/safetensors_header.h"

namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxFileBytes = uint64_t{1} << 30;

/// Returns false if the input ends before `bytes`.
bool read_exactly(std::string& bytes) {
  const size_t got = std::fread(bytes.data(), 1, bytes.size(), stdin);
  if (got != bytes.size() && got != 0) {
    throw lockstep::Error("accepts", "the input ends within a file");
  }
  return got == bytes.size();
}

Json answer(const std::string& file) {
  try {
    const auto header = lockstep::storage::parse_safetensors_header("file", file);
    Json tensors = Json::array();
    for (const lockstep::storage::TensorEntry& entry : header.tensors) {
      tensors.push_back(
          {{"name", entry.name},
           {"dtype", lockstep::storage::dtype_name(entry.dtype)},
           {"shape", entry.shape},
           {"begin", header.data_begin + entry.begin},
           {"end", header.data_begin + entry.end}});
    }
    return {{"accepted", true}, {"metadata", header.metadata}, {"tensors", std::move(tensors)}};
  } catch (const lockstep::CheckpointError& error) {
    return {{"accepted", false}, {"why", error.what()}};
  }
}

int run() {
  std::string length_field(sizeof(uint64_t), '\0');
  while (read_exactly(length_field)) {
    uint64_t length = 0;
    for (size_t i = length_field.size(); i-- > 0;) {
      length = length << 8 | static_cast<unsigned char>(length_field[i]);
    }
    if (length > kMaxFileBytes) {
      throw lockstep::Error("accepts", "a file is too long; got " + std::to_string(length));
    }
    std::string file(length, '\0');
    if (!file.empty() && !read_exactly(file)) {
      throw lockstep::Error("accepts", "the input ends before a file");
    }
    const std::string line = answer(file).dump() + "\n";
    std::fwrite(line.data(), 1, line.size(), stdout);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int main() {
  return lockstep::run_main(run);
}
