// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "lockstep/base/file_map.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::storage {

/// Throws CheckpointError `[path] what; <errno in words>`.
[[noreturn]] void throw_errno(const std::filesystem::path& path, const std::string& what);

/// The treatment of symbolic links. A checkpoint contains none.
enum class Links {
  kRefuse,
  kFollow,  ///< Follows links to regular files.
};

/// Opens a regular file for reading, and returns its size. Throws CheckpointError for anything
/// else: a symbolic link is not followed unless `links` allows it, a pipe does not block.
std::pair<UniqueFd, uint64_t> open_regular(
    const std::filesystem::path& path, Links links = Links::kRefuse);

/// Reads a regular file. Throws CheckpointError as open_regular, and if the file is longer than
/// `max_bytes`.
std::string read_file(
    const std::filesystem::path& path, uint64_t max_bytes, Links links = Links::kRefuse);

/// Reads `size` bytes of an open file at `offset`. Throws CheckpointError, naming `path` and
/// `tensor`, for a disk error, or if the file is too short.
void read_at(
    const std::filesystem::path& path,
    const UniqueFd& file,
    uint64_t offset,
    char* data,
    size_t size,
    const std::string& tensor = "");

/// Maps a regular file into memory. Writes to the memory do not change the file; a page needs its
/// own memory only after a write. Throws CheckpointError as open_regular, and if it cannot be
/// mapped.
///
/// The kernel answers an access to an unreadable page, or to a truncated file, with SIGBUS. So call
/// `fetch_pages` before an access. It cannot help if a file shrinks, or its pages are evicted and
/// the disk then fails, between a fetch and the access: that still ends the process. Code that must
/// survive even that reads blocks, as verify_content does.
FileMap map_private(const std::filesystem::path& path, Links links = Links::kRefuse);

/// Reads a part of a mapped file into the page cache. Throws CheckpointError, naming `path` and
/// `tensor`, for a disk error. Costs as much as the first access, which then costs nothing. No
/// effect on Linux before 5.14.
void fetch_pages(
    const std::filesystem::path& path,
    const FileMap& map,
    size_t begin,
    size_t size,
    const std::string& tensor = "");

/// Flushes the names in `folder` to disk (fsync). Throws CheckpointError if that fails.
void sync_folder(const std::filesystem::path& folder);

/// Creates `folder` and its missing parents, and flushes them to disk.
void make_folders(const std::filesystem::path& folder);

/// Returns whether the name exists, even as a dangling symbolic link.
bool name_exists(const std::filesystem::path& path);

/// Returns why `path` is not a folder, as the rest of a sentence that begins with the path. Returns
/// nothing for a folder, for a symbolic link to one, for a free name, and for a disk error.
std::optional<std::string> why_not_folder(const std::filesystem::path& path);

}  // namespace lockstep::storage
