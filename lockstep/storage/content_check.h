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
#include "lockstep/storage/safetensors/safetensors_header.h"

namespace lockstep::storage {

/// Comparisons of a checkpoint's file with its record in the manifest. Each throws CheckpointError,
/// naming the file and if possible the tensor.
void check_size(const std::string& path, uint64_t got, const FileRecord& record);
void check_crc(
    const std::string& path, uint32_t got, uint32_t expected, const std::string& tensor = "");

/// Verifies a header, given as its bytes and entries, without reading the data. A file's checksum
/// can be combined from those of its parts. So if the header and the manifest's checksums of the
/// tensors give the manifest's checksum of the file, all of these are valid.
void check_header(
    const std::string& path,
    std::string_view header,
    const std::vector<TensorEntry>& entries,
    const FileRecord& record);

struct ContentWatch {
  /// Called for a damaged or unreadable tensor. If it returns, the next tensor is checked.
  std::function<void(const std::string& tensor, const CheckpointError& error)> damaged;
  /// Called regularly with the bytes read; their sum is at most the file's expected size.
  std::function<void(uint64_t bytes)> advance;
};

/// Reads a file once from start to end and compares everything. Throws CheckpointError for faults
/// of the complete file. It reads blocks instead of mapping the file, so that truncation meanwhile,
/// or a disk error, throws instead of raising SIGBUS.
void check_content(
    const std::filesystem::path& path, const FileRecord& record, const ContentWatch& watch);

}  // namespace lockstep::storage
