// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/file/append_file.h"

#include <cerrno>
#include <fcntl.h>
#include <fstream>
#include <iterator>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::tracking {
namespace {

constexpr mode_t kMode = 0666;  // Reduced by the umask.

std::string text_of(int error) {
  return std::generic_category().message(error);
}

}  // namespace

void make_folders(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error && !std::filesystem::is_directory(folder, error)) {
    error = std::make_error_code(std::errc::not_a_directory);
  }
  if (error) {
    throw ConfigError(
        folder.string(),
        fmt::format("cannot create this folder: {}; choose a writable folder", error.message()));
  }
}

std::optional<std::string> file_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open() || file.bad()) {
    return std::nullopt;
  }
  return bytes;
}

bool AppendFile::create(const std::filesystem::path& path) {
  const int flags = O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_CLOEXEC;
  file_.reset(::open(path.c_str(), flags, kMode));
  if (!file_.is_open() && errno == EEXIST) {
    return false;
  }
  if (!file_.is_open()) {
    throw ConfigError(
        path.string(),
        fmt::format("cannot create this file: {}; choose a writable folder", text_of(errno)));
  }
  path_ = path;
  return true;
}

void AppendFile::open(const std::filesystem::path& path) {
  const int flags = O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC;
  file_.reset(::open(path.c_str(), flags, kMode));
  if (!file_.is_open()) {
    throw ConfigError(
        path.string(),
        fmt::format(
            "cannot open this file for appending: {}; choose a writable folder", text_of(errno)));
  }
  path_ = path;
  struct stat status {};
  if (::fstat(file_.get(), &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0) {
    char last = 0;
    if (::pread(file_.get(), &last, 1, status.st_size - 1) == 1) {
      last_byte_ = last;
    }
  }
}

void AppendFile::append(std::string_view record) {
  size_t done = 0;
  while (done < record.size()) {
    const ssize_t written = ::write(file_.get(), record.data() + done, record.size() - done);
    if (written >= 0) {
      done += static_cast<size_t>(written);
    } else if (errno != EINTR) {
      const int error = errno;
      const off_t end = ::lseek(file_.get(), 0, SEEK_CUR);
      if (done > 0 && end >= static_cast<off_t>(done)) {
        // Best effort: readers stop at an incomplete record.
        [[maybe_unused]] const int cut = ::ftruncate(file_.get(), end - static_cast<off_t>(done));
      }
      throw Error(
          path_.string(),
          fmt::format(
              "cannot append a record of {} bytes: {}; free some space, or choose another folder",
              record.size(),
              text_of(error)));
    }
  }
}

void AppendFile::sync() {
  // EINVAL and EROFS: a pipe or a device, which cannot be flushed.
  if (file_.is_open() && ::fdatasync(file_.get()) != 0 && errno != EINVAL && errno != EROFS) {
    throw Error(path_.string(), fmt::format("cannot be flushed to disk: {}", text_of(errno)));
  }
}

void AppendFile::close() {
  if (file_.is_open() && ::close(file_.release()) != 0 && errno != EINTR) {
    throw Error(path_.string(), fmt::format("cannot be closed: {}", text_of(errno)));
  }
}

}  // namespace lockstep::tracking
