// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/output/log_files.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

constexpr mode_t kFolderMode = 0700;
constexpr mode_t kFileMode = 0600;

[[noreturn]] void refuse(const std::string& path, int error) {
  throw ConfigError(
      "lockstep launch",
      fmt::format(
          "the ranks' output cannot be logged: {}: {}; try another --log-dir",
          path,
          std::strerror(error)));
}

/// Creates `path` and its missing parents.
void make_folder(const std::filesystem::path& path) {
  std::filesystem::path folder;
  for (const auto& part : path) {
    folder /= part;
    if (::mkdir(folder.c_str(), kFolderMode) != 0 && errno != EEXIST) {
      // A read-only file system may return EROFS instead of EEXIST.
      const int error = errno;
      if (!std::filesystem::is_directory(folder)) {
        refuse(folder, error);
      }
    }
  }
  if (!std::filesystem::is_directory(path)) {
    refuse(path, ENOTDIR);
  }
}

std::string temporary_folder() {
  const std::string parent = Environment::process().text("TMPDIR").value_or("/tmp");
  std::string name = parent + "/lockstep_XXXXXX";
  if (::mkdtemp(name.data()) == nullptr) {
    refuse(name, errno);
  }
  return name;
}

std::unique_ptr<LogFile> open_file(
    const std::string& path, const LogFile::ShowMessage& show_message) {
  UniqueFd fd(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, kFileMode));
  if (!fd.is_open()) {
    refuse(path, errno);
  }
  return std::make_unique<LogFile>(path, std::move(fd), show_message);
}

}  // namespace

void LogFile::write(std::string_view bytes) {
  while (fd_.is_open() && !bytes.empty()) {
    const ssize_t size = ::write(fd_.get(), bytes.data(), bytes.size());
    if (size >= 0) {
      bytes.remove_prefix(static_cast<size_t>(size));
    } else if (errno != EINTR) {
      const int error = errno;
      fd_.reset();
      show_message_(fmt::format(
          "{} cannot be written: {}; the job continues, with output on the console only",
          path_,
          std::strerror(error)));
    }
  }
}

LogFolder::LogFolder(const std::string& dir, const std::string& run_id)
    : path_(fmt::format("{}/{}", dir.empty() ? temporary_folder() : dir, run_id)) {
  make_folder(path_);
  if (::access(path_.c_str(), W_OK | X_OK) != 0) {
    refuse(path_, errno);
  }
}

std::vector<RankLogs> LogFolder::open(
    int attempt,
    const std::vector<Streams>& streams,
    const LogFile::ShowMessage& show_message) const {
  const LogFile::ShowMessage show_once =
      [show_message, reported = std::make_shared<bool>(false)](const std::string& text) {
        if (!std::exchange(*reported, true)) {
          show_message(text);
        }
      };
  std::vector<RankLogs> logs;
  for (size_t rank = 0; rank < streams.size(); ++rank) {
    const std::string folder = fmt::format("{}/attempt_{}/{}", path_, attempt, rank);
    make_folder(folder);
    logs.push_back(
        {.out = streams[rank].out ? open_file(folder + "/stdout.log", show_once) : nullptr,
         .err = streams[rank].err ? open_file(folder + "/stderr.log", show_once) : nullptr});
  }
  return logs;
}

}  // namespace lockstep::launcher
