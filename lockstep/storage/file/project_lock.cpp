// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/file/project_lock.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <fcntl.h>
#include <map>
#include <mutex>
#include <string>
#include <sys/stat.h>
#include <system_error>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/storage/file/files.h"

namespace lockstep::storage {
namespace {

namespace fs = std::filesystem;

constexpr auto kRetryInterval = std::chrono::milliseconds(100);
constexpr size_t kMaxHolderBytes = 300;

/// A file that this process has locked. Closing any descriptor of it releases the lock, so there is
/// only one.
struct LockedFile {
  UniqueFd file;
  pid_t pid = 0;  ///< A forked child sees its parent's entries, but does not have the locks.
  int users = 0;
};

struct LockedFiles {
  std::mutex mutex;
  std::map<std::pair<dev_t, ino_t>, LockedFile> by_id;
};

LockedFiles& locked_files() {
  static LockedFiles files;
  return files;
}

std::string this_process() {
  std::array<char, 65> host{};
  gethostname(host.data(), host.size() - 1);
  const time_t now = time(nullptr);
  tm utc{};
  gmtime_r(&now, &utc);
  std::array<char, 32> since{};
  strftime(since.data(), since.size(), "%Y-%m-%d %H:%M:%S UTC", &utc);
  return fmt::format(
      "process {} ({}) on host {}, since {}",
      getpid(),
      program_invocation_short_name,
      host.data(),
      since.data());
}

/// Returns the content, made safe for a terminal: any user may have written to the file.
std::string holder_in(const UniqueFd& file) {
  std::string text(kMaxHolderBytes, '\0');
  const ssize_t got = pread(file.get(), text.data(), text.size(), 0);
  text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  text = text.substr(0, text.find('\n'));
  for (char& c : text) {
    c = std::isprint(static_cast<unsigned char>(c)) != 0 ? c : '?';
  }
  return text.empty() ? "an unknown process" : text;
}

/// Returns whether the error of fcntl means that another process has the lock.
bool is_taken(int error) {
  return error == EACCES || error == EAGAIN;
}

[[noreturn]] void refuse_second(const fs::path& folder, const std::string& holder) {
  throw CheckpointError(
      folder,
      fmt::format(
          "is in use by another job: {}; end that job or wait for it, or set another project_dir "
          "(load_state(folder) reads a checkpoint without one); if that host no longer exists and "
          "its file server keeps the lock, remove {}",
          holder,
          (folder / kProjectLockName).native()));
}

std::string holder_of(const fs::path& path) {
  return holder_in(UniqueFd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)));
}

}  // namespace

ProjectLock::ProjectLock(const fs::path& folder, std::chrono::milliseconds patience) {
  const fs::path path = folder / kProjectLockName;
  std::error_code ignored;  // Opening the file then fails, with a better reason.
  fs::create_directory(path.parent_path(), ignored);
  const auto give_up = std::chrono::steady_clock::now() + patience;
  while (!try_lock(path)) {
    if (std::chrono::steady_clock::now() >= give_up) {
      refuse_second(folder, holder_of(path));
    }
    std::this_thread::sleep_for(kRetryInterval);
  }
}

/// Returns false if another process has the lock.
bool ProjectLock::try_lock(const fs::path& path) {
  LockedFiles& files = locked_files();
  const std::lock_guard<std::mutex> guard(files.mutex);
  struct stat status {};
  if (stat(path.c_str(), &status) == 0) {
    id_ = {status.st_dev, status.st_ino};
    const auto own = files.by_id.find(id_);
    if (own != files.by_id.end() && own->second.pid == getpid()) {
      ++own->second.users;
      return held_ = true;
    }
    if (own != files.by_id.end()) {
      files.by_id.erase(own);  // A parent's: closing it later would release this process's lock.
    }
  }
  UniqueFd file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!file.is_open() || fstat(file.get(), &status) != 0) {
    if (errno == EACCES) {
      return true;  // Another user's file.
    }
    throw_errno(path, "cannot be opened to lock the project folder");
  }
  struct flock all_bytes {};
  all_bytes.l_type = F_WRLCK;
  all_bytes.l_whence = SEEK_SET;
  if (fcntl(file.get(), F_SETLK, &all_bytes) != 0) {
    return !is_taken(errno);
  }
  // If the disk is full, only the holder's name is missing.
  const std::string text = this_process() + "\n";
  if (ftruncate(file.get(), 0) == 0) {
    (void)!pwrite(file.get(), text.data(), text.size(), 0);
  }
  id_ = {status.st_dev, status.st_ino};
  files.by_id.insert_or_assign(id_, LockedFile{std::move(file), getpid(), 1});
  return held_ = true;
}

ProjectLock::~ProjectLock() {
  LockedFiles& files = locked_files();
  const std::lock_guard<std::mutex> guard(files.mutex);
  const auto own = files.by_id.find(id_);
  if (held_ && own != files.by_id.end() && own->second.pid == getpid() &&
      --own->second.users == 0) {
    files.by_id.erase(own);
  }
}

}  // namespace lockstep::storage
