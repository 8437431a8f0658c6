// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/write/temp_folder.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <ctime>
#include <fcntl.h>
#include <mutex>
#include <optional>
#include <random>
#include <sys/file.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/storage/model_files.h"

namespace lockstep::storage {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTemporaryMark = ".tmp-";
constexpr std::string_view kAsideMark = ".old-";
constexpr size_t kHexDigits = 16;
/// No running save is silent for this long.
constexpr time_t kForgottenSeconds = time_t{24} * 60 * 60;
/// Attempts to create and mark a folder that another process removes in between.
constexpr int kMostTries = 100;

/// Keeps remove_stale of one thread from a folder that another thread has created but not yet
/// locked.
std::mutex& naming_mutex() {
  static std::mutex mutex;
  return mutex;
}

std::string host_name() {
  std::array<char, 65> name{};
  gethostname(name.data(), name.size() - 1);
  std::string host(name.data());
  for (char& c : host) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '-' && c != '.') {
      c = '_';
    }
  }
  return host.empty() ? "localhost" : host;
}

fs::path marked_name(const fs::path& target, std::string_view mark) {
  std::random_device random;
  const uint64_t number = (uint64_t{random()} << 32) | random();
  fs::path name = target;
  name += fmt::format("{}{}-{}-{:016x}", mark, host_name(), getpid(), number);
  return name;
}

struct Owner {
  std::string target;  ///< The name without the mark.
  bool aside = false;
  std::string host;
  pid_t pid = 0;
};

/// Parses a temporary name from the right, since the target's and the host's name are arbitrary.
std::optional<Owner> owner_of(std::string_view name) {
  Owner owner;
  const size_t temporary = name.rfind(kTemporaryMark);
  const size_t aside = name.rfind(kAsideMark);
  owner.aside =
      temporary == std::string_view::npos || (aside != std::string_view::npos && aside > temporary);
  const size_t mark = owner.aside ? aside : temporary;
  if (mark == std::string_view::npos || mark == 0) {
    return std::nullopt;
  }
  owner.target = name.substr(0, mark);
  std::string_view rest = name.substr(mark + kTemporaryMark.size());
  const size_t last = rest.rfind('-');
  const size_t middle = last == std::string_view::npos || last == 0 ? std::string_view::npos
                                                                    : rest.rfind('-', last - 1);
  if (middle == std::string_view::npos || rest.size() - last - 1 != kHexDigits ||
      rest.find_first_not_of("0123456789abcdef", last + 1) != std::string_view::npos) {
    return std::nullopt;
  }
  owner.host = rest.substr(0, middle);
  const char* end = rest.data() + last;
  const auto parsed = std::from_chars(rest.data() + middle + 1, end, owner.pid);
  if (parsed.ec != std::errc() || parsed.ptr != end || owner.pid <= 0) {
    return std::nullopt;
  }
  return owner;
}

enum class Mark {
  kOurs,
  kOthers,
  kNone,  ///< Some network file systems have no such locks.
};

Mark mark(const UniqueFd& file, int how) {
  int result = flock(file.get(), how);
  while (result != 0 && errno == EINTR) {
    result = flock(file.get(), how);
  }
  if (result == 0) {
    return Mark::kOurs;
  }
  return errno == EWOULDBLOCK ? Mark::kOthers : Mark::kNone;
}

time_t last_change(const fs::path& path) {
  struct stat status {};
  return lstat(path.c_str(), &status) == 0 ? status.st_mtime : 0;
}

/// Returns whether nothing in the folder has changed for a day. Checks the files, too, since a
/// write to a file does not change the folder's time.
bool is_forgotten(const fs::path& path) {
  time_t newest = last_change(path);
  std::error_code error;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error)) {
    newest = std::max(newest, last_change(entry->path()));
  }
  return newest < time(nullptr) - kForgottenSeconds;
}

bool is_dead(const Owner& owner) {
  return owner.host == host_name() && kill(owner.pid, 0) != 0 && errno == ESRCH;
}

/// `file`: the open file or folder; marked as in use if marks decide.
bool is_abandoned(const UniqueFd& file, const fs::path& path, const Owner& owner) {
  struct stat status {};
  if (fstat(file.get(), &status) != 0 || status.st_uid != geteuid()) {
    return false;
  }
  if (!S_ISDIR(status.st_mode)) {
    return S_ISREG(status.st_mode) && (is_dead(owner) || is_forgotten(path));
  }
  switch (mark(file, LOCK_EX | LOCK_NB)) {
    case Mark::kOurs:
      return owner.host == host_name() || is_forgotten(path);
    case Mark::kOthers:
      return false;
    case Mark::kNone:
      break;
  }
  return is_dead(owner);
}

/// Returns the abandoned file or folder, open and marked as in use, so that no other process
/// removes it at the same time. Not open if it is not abandoned.
UniqueFd take_abandoned(const fs::path& path, const Owner& owner) {
  UniqueFd file(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC));
  return file.is_open() && is_abandoned(file, path, owner) ? std::move(file) : UniqueFd();
}

/// Returns whether the open file still has that name.
bool is_named(const UniqueFd& file, const fs::path& path) {
  struct stat open_one {};
  struct stat named {};
  return fstat(file.get(), &open_one) == 0 && lstat(path.c_str(), &named) == 0 &&
         open_one.st_dev == named.st_dev && open_one.st_ino == named.st_ino;
}

UniqueFd make_and_open(const fs::path& path) {
  if (mkdir(path.c_str(), 0700) != 0) {
    throw_errno(path, "cannot be created");
  }
  UniqueFd file(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!file.is_open() && errno != ENOENT) {
    const int why = errno;
    rmdir(path.c_str());
    errno = why;
    throw_errno(path, "cannot be opened");
  }
  return file;
}

bool may_be_only_weights(const fs::path& folder, const Owner& owner) {
  std::error_code error;
  return !owner.aside && owner.target == "model" && fs::exists(folder / kModelIndex, error);
}

bool restore_or_remove(const fs::path& folder, const Owner& owner) {
  std::error_code error;
  const fs::path target = folder.parent_path() / owner.target;
  if (owner.aside && fs::symlink_status(target, error).type() == fs::file_type::not_found) {
    fs::rename(folder, target, error);
  } else {
    fs::remove_all(folder, error);
  }
  return !error;
}

bool clean_up(
    const fs::path& path, const Owner& owner, const std::function<void(const fs::path&)>& finish) {
  const UniqueFd held = take_abandoned(path, owner);
  if (!held.is_open()) {
    return false;
  }
  if (may_be_only_weights(path, owner)) {
    if (!finish) {
      return false;
    }
    try {
      finish(path);
    } catch (const CheckpointError&) {
      return false;
    }
  }
  return restore_or_remove(path, owner);
}

}  // namespace

fs::path temporary_name(const fs::path& target) {
  return marked_name(target, kTemporaryMark);
}

fs::path set_aside_name(const fs::path& target) {
  return marked_name(target, kAsideMark);
}

bool is_temporary_name(std::string_view name) {
  return owner_of(name).has_value();
}

OwnedFolder::OwnedFolder(const fs::path& path) {
  const std::lock_guard<std::mutex> guard(naming_mutex());
  for (int tries = 0; tries < kMostTries; ++tries) {
    lock_ = make_and_open(path);
    // Another process may have found the folder before it was marked, and be about to remove it:
    // this waits for that process.
    if (lock_.is_open() && (mark(lock_, LOCK_EX) == Mark::kNone || is_named(lock_, path))) {
      return;
    }
  }
  throw CheckpointError(path, "was removed by another process each time it was created");
}

OwnedFolder::~OwnedFolder() {
  // Closing does not unlock it if another process has it open.
  flock(lock_.get(), LOCK_UN);
}

UniqueFd mark_as_in_use(const fs::path& path) {
  UniqueFd file(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!file.is_open() && errno != ENOENT) {
    throw_errno(path, "cannot be opened");
  }
  return file.is_open() && mark(file, LOCK_EX | LOCK_NB) != Mark::kOthers ? std::move(file)
                                                                          : UniqueFd();
}

std::vector<fs::path> remove_stale(
    const fs::path& parent, const std::function<void(const fs::path&)>& finish) noexcept {
  std::vector<fs::path> done;
  try {
    const std::lock_guard<std::mutex> guard(naming_mutex());
    std::error_code error;
    std::vector<fs::path> found;
    for (fs::directory_iterator entry(parent.empty() ? "." : parent, error), end;
         !error && entry != end;
         entry.increment(error)) {
      found.push_back(entry->path());
    }
    for (const fs::path& path : found) {
      const std::optional<Owner> owner = owner_of(path.filename().native());
      if (owner && clean_up(path, *owner, finish)) {
        done.push_back(path);
      }
    }
  } catch (const std::exception&) {
    // Only for lack of memory. The next call removes the rest.
  }
  return done;
}

}  // namespace lockstep::storage
