// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

namespace lockstep::checkpoint {

/// An open file descriptor, closed when it goes.
class Descriptor {
 public:
  explicit Descriptor(int value = -1) : value_(value) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  int get() const { return value_; }
  explicit operator bool() const { return value_ >= 0; }
  int release() { return std::exchange(value_, -1); }

 private:
  int value_;
};

/// Throws CheckpointError `[path] what; <errno in words>`.
[[noreturn]] void throw_errno(const std::filesystem::path& path, const std::string& what);

/// What becomes of a path that is a symbolic link. A checkpoint holds none.
enum class Links {
  kRefuse,
  kFollow,  ///< To a regular file.
};

/// Opens a regular file to be read, and says how long it is. CheckpointError for anything else: a
/// symbolic link is not followed unless `links` allows it, a pipe not waited for.
std::pair<Descriptor, uint64_t> open_regular(
    const std::filesystem::path& path, Links links = Links::kRefuse);

/// The content of a regular file. CheckpointError also if it is longer than `max_bytes`.
std::string read_file(
    const std::filesystem::path& path, uint64_t max_bytes, Links links = Links::kRefuse);

/// `size` bytes of an open file from `offset` on. CheckpointError, naming `path` and `tensor`,
/// which they belong to, if the disk cannot read them, or if the file ends before.
void read_at(
    const std::filesystem::path& path,
    const Descriptor& file,
    uint64_t offset,
    char* data,
    size_t size,
    const std::string& tensor = "");

/// Returns when the disk has the names in `folder` (fsync). CheckpointError if it says no.
void sync_folder(const std::filesystem::path& folder);

/// Makes `folder` and its missing parents, and returns when the disk has them.
void make_folders(const std::filesystem::path& folder);

/// True if there is something of that name, be it a symbolic link to nothing.
bool name_exists(const std::filesystem::path& path);

/// Says why what is named `path` is no folder, as the rest of a sentence that begins with the path.
/// Nothing for a folder, for a symbolic link to one, for a free name, and where the disk fails.
std::optional<std::string> why_no_folder(const std::filesystem::path& path);

}  // namespace lockstep::checkpoint
