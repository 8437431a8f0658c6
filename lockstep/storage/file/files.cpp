// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/file/files.h"

#include <cerrno>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::storage {
namespace {

/// MADV_POPULATE_READ, which glibc's headers have since 2.35 only.
constexpr int kPopulateRead = 22;

/// Returns whether the error of madvise means that an access would raise SIGBUS.
bool is_read_error(int error) {
  return error == EFAULT || error == EIO || error == EHWPOISON;
}

std::string reason_of(int error) {
  return error == EFAULT ? "the file was truncated, or its disk fails"
                         : std::generic_category().message(error);
}

}  // namespace

void throw_errno(const std::filesystem::path& path, const std::string& what) {
  throw CheckpointError(path, what + "; " + std::generic_category().message(errno));
}

std::pair<UniqueFd, uint64_t> open_regular(const std::filesystem::path& path, Links links) {
  // Non-blocking, since opening a pipe would wait for a writer.
  const int follow = links == Links::kRefuse ? O_NOFOLLOW : 0;
  UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | follow));
  if (!file.is_open()) {
    if (errno == ELOOP && links == Links::kRefuse) {
      throw CheckpointError(
          path, "is a symbolic link, which a checkpoint must not contain; replace it by the file");
    }
    throw_errno(path, "cannot be opened");
  }
  struct stat status {};
  if (fstat(file.get(), &status) != 0) {
    throw_errno(path, "cannot be examined");
  }
  if (!S_ISREG(status.st_mode)) {
    throw CheckpointError(path, "is not a regular file; a checkpoint contains only regular files");
  }
  return {std::move(file), static_cast<uint64_t>(status.st_size)};
}

std::string read_file(const std::filesystem::path& path, uint64_t max_bytes, Links links) {
  const auto [file, bytes] = open_regular(path, links);
  if (bytes > max_bytes) {
    throw CheckpointError(
        path, fmt::format("is too long; got {} bytes, expected at most {}", bytes, max_bytes));
  }
  std::string content(bytes, '\0');
  read_at(path, file, 0, content.data(), content.size());
  return content;
}

void read_at(
    const std::filesystem::path& path,
    const UniqueFd& file,
    uint64_t offset,
    char* data,
    size_t size,
    const std::string& tensor) {
  while (size > 0) {
    const ssize_t got = pread(file.get(), data, size, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      throw CheckpointError(
          path, "cannot be read; " + std::generic_category().message(errno), tensor);
    }
    if (got == 0) {
      throw CheckpointError(path, "was truncated while it was read", tensor);
    }
    data += got;
    size -= static_cast<size_t>(got);
    offset += static_cast<uint64_t>(got);
  }
}

FileMap map_private(const std::filesystem::path& path, Links links) {
  const auto [file, bytes] = open_regular(path, links);
  // Without NORESERVE a host without overcommit would count the file as used memory.
  FileMap map(file.get(), bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE);
  if (!map.is_mapped()) {
    throw_errno(path, fmt::format("cannot be mapped ({} bytes)", bytes));
  }
  return map;
}

void fetch_pages(
    const std::filesystem::path& path,
    const FileMap& map,
    size_t begin,
    size_t size,
    const std::string& tensor) {
  static const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (size == 0) {
    return;
  }
  const size_t past_page = begin % page;
  // Other errors are ignored: if they matter, the access fails.
  if (madvise(map.data() + begin - past_page, size + past_page, kPopulateRead) != 0 &&
      is_read_error(errno)) {
    throw CheckpointError(
        path,
        fmt::format(
            "cannot be read: {}, at bytes {} to {}; try an earlier checkpoint, or another copy",
            reason_of(errno),
            begin,
            begin + size),
        tensor);
  }
}

void sync_folder(const std::filesystem::path& folder) {
  const UniqueFd file(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!file.is_open()) {
    throw_errno(folder, "cannot be opened to flush it to disk");
  }
  if (fsync(file.get()) != 0) {
    throw_errno(folder, "cannot be flushed to disk");
  }
}

void make_folders(const std::filesystem::path& folder) {
  std::error_code error;
  if (folder.empty() || std::filesystem::is_directory(folder, error)) {
    return;
  }
  const std::filesystem::path parent = folder.parent_path();
  make_folders(parent);
  if (mkdir(folder.c_str(), 0777) != 0 && errno != EEXIST) {
    throw_errno(folder, "cannot be created");
  }
  if (!std::filesystem::is_directory(folder, error)) {
    throw CheckpointError(folder, "is not a folder; a checkpoint is saved in a folder");
  }
  sync_folder(parent.empty() ? "." : parent);
}

bool name_exists(const std::filesystem::path& path) {
  struct stat status {};
  if (lstat(path.c_str(), &status) == 0) {
    return true;
  }
  if (errno != ENOENT) {
    throw_errno(path, "cannot be examined");
  }
  return false;
}

std::optional<std::string> why_not_folder(const std::filesystem::path& path) {
  struct stat named {};
  if (lstat(path.c_str(), &named) != 0) {
    return std::nullopt;
  }
  if (!S_ISLNK(named.st_mode)) {
    return S_ISDIR(named.st_mode)
               ? std::nullopt
               : std::optional<std::string>("is not a folder; a checkpoint is a folder");
  }
  struct stat target {};
  std::string reason = "is not a folder";
  if (stat(path.c_str(), &target) != 0) {
    if (errno != ENOENT && errno != ENOTDIR && errno != ELOOP && errno != EACCES) {
      return std::nullopt;
    }
    reason = errno == ENOENT ? "does not exist"
                             : "cannot be reached: " + std::generic_category().message(errno);
  } else if (S_ISDIR(target.st_mode)) {
    return std::nullopt;
  }
  std::error_code ignored;
  return fmt::format(
      "is a symbolic link to {}, which {}; mount that disk, restore the folder, or remove the link",
      std::filesystem::read_symlink(path, ignored).string(),
      reason);
}

}  // namespace lockstep::storage
