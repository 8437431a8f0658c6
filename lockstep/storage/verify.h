// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::storage {

struct FileRecord;
struct TensorEntry;
class StoredCheckpoint;

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

/// Reads a file once from start to end and compares everything. Throws CheckpointError for the
/// first fault. It reads blocks instead of mapping the file, so that truncation meanwhile, or a
/// disk error, throws instead of raising SIGBUS.
void verify_content(const std::filesystem::path& path, const FileRecord& record);

/// Finds faults that checksums cannot show, because the manifest with the checksums has them, too.
/// In that order: invalid values in `meta` of a saved state; a required file that the manifest
/// lacks; a missing part of a set of tensors; slices beyond their tensor, or with gaps or overlaps.
/// Reads the headers of all files of tensors, except the `damaged` ones.
std::vector<CheckpointError> find_structural_faults(
    const StoredCheckpoint& checkpoint, const std::set<std::string>& damaged = {});

/// A damaged part of a checkpoint.
struct Damage {
  std::string file;
  std::string tensor;  ///< Empty for the complete file, or its header.
  std::string why;     ///< The text of the error.
};

/// Finds all faults of a checkpoint's files, in the order of the manifest, and then its structural
/// faults, see find_structural_faults. StoredCheckpoint stops at the first. Reads everything once.
/// `advance` is called regularly with the bytes read; their sum is the expected size of all files.
std::vector<Damage> find_damage(
    const StoredCheckpoint& checkpoint,
    const std::function<void(uint64_t bytes)>& advance = [](uint64_t /*bytes*/) {});

}  // namespace lockstep::storage
