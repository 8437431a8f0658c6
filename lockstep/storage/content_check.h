// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/storage/manifest.h"
#include "lockstep/storage/safetensors_header.h"

namespace lockstep::checkpoint {

/// Comparisons of a checkpoint's file with its record in the manifest. Each throws CheckpointError,
/// naming the file and where it can the tensor.
void check_size(const std::string& path, uint64_t got, const FileRecord& record);
void check_crc(
    const std::string& path, uint32_t got, uint32_t expected, const std::string& tensor = "");

/// Proves a header without the data behind it: the checksum of a file is that of its parts put
/// together, so if the header and the manifest's checksums of the tensors give the manifest's
/// checksum of the file, all of these are what was written. `header` are its bytes.
void check_header(
    const std::string& path,
    std::string_view header,
    const std::vector<TensorEntry>& entries,
    const FileRecord& record);

struct ContentWatch {
  /// Told of a tensor that is not what was written, or cannot be read; throws, or the next one is
  /// looked at.
  std::function<void(const std::string& tensor, const CheckpointError& error)> damaged;
  /// Told of every few bytes that were read; in all no more than the file should have.
  std::function<void(uint64_t bytes)> advance;
};

/// Reads a file once from front to back and compares all of it. CheckpointError for what is wrong
/// with the file as a whole. Reads blocks instead of mapping it: a file that becomes shorter
/// meanwhile, or lies on a bad place of the disk, is an error like any other, and no SIGBUS.
void check_content(
    const std::filesystem::path& path, const FileRecord& record, const ContentWatch& watch);

}  // namespace lockstep::checkpoint
