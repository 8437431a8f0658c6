// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/catalog/catalog.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <functional>
#include <limits>
#include <string_view>
#include <sys/stat.h>
#include <system_error>
#include <tuple>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/storage/file/files.h"
#include "lockstep/storage/file/output_file.h"
#include "lockstep/storage/safetensors/safetensors_header.h"
#include "lockstep/storage/write/temp_folder.h"

namespace lockstep::storage {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLatestName = "latest";
constexpr const char* kUnfinished =
    "is a temporary folder of a save that is running, or was interrupted";
constexpr std::string_view kNumberedPrefix = "checkpoint_";
// So that the next number still fits into an int64.
constexpr size_t kMostDigits = 18;

/// Returns folders, symbolic links to folders, and other entries named checkpoint_<number>; sorted.
std::vector<fs::path> candidates_in(const fs::path& parent) {
  std::vector<fs::path> candidates;
  std::error_code error;
  fs::directory_iterator entry(parent.empty() ? "." : parent, error);
  if (error == std::errc::no_such_file_or_directory) {
    return candidates;
  }
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::error_code dangling;  // For a dangling symbolic link.
    const bool is_folder = entry->is_directory(dangling);
    if ((is_folder || checkpoint_number(entry->path())) &&
        !entry->path().filename().native().starts_with('.')) {
      candidates.push_back(entry->path());
    }
  }
  if (error) {
    throw CheckpointError(parent, "cannot be listed; " + error.message());
  }
  std::sort(candidates.begin(), candidates.end());
  return candidates;
}

/// Orders checkpoints by their commits. A symbolic link comes before the folder itself.
using CommitOrder = std::tuple<int64_t, bool, fs::path>;
CommitOrder commit_order(int64_t sequence, const fs::path& path) {
  std::error_code ignored;
  return {sequence, !fs::is_symlink(path, ignored), path};
}

/// Returns the manifest of a folder, or nothing and the reason in `why_not`. Throws if an existing
/// manifest cannot be read because of an I/O error, since it may be the newest. A folder without
/// permission belongs to another user. `on_newer`: called for a manifest of a newer Lockstep.
std::optional<Manifest> manifest_of(
    const fs::path& folder,
    std::string& why_not,
    const std::function<void(const CheckpointError&)>& on_newer) {
  if (why_not_folder(folder)) {
    why_not = not_a_checkpoint(folder).what();
    return std::nullopt;
  }
  const fs::path path = folder / kManifestName;
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0) {
    if (errno != ENOENT && errno != ENOTDIR && errno != EACCES) {
      throw_errno(path, "cannot be examined");
    }
    why_not = errno == EACCES
                  ? CheckpointError(folder, "cannot be entered; this user has no permission").what()
                  : not_a_checkpoint(folder).what();
    return std::nullopt;
  }
  std::string text;
  try {
    text = read_file(path, kMaxManifestBytes);
  } catch (const CheckpointError& error) {
    if (S_ISREG(status.st_mode) && access(path.c_str(), R_OK) == 0) {
      throw;
    }
    why_not = error.what();  // A link or a pipe, another user's file, or removed meanwhile.
    return std::nullopt;
  }
  try {
    return parse_manifest(path, text);
  } catch (const CheckpointError& invalid) {
    if (is_newer_manifest(path, text)) {
      on_newer(invalid);
    }
    why_not = invalid.what();
    return std::nullopt;
  }
}

/// Returns whether the folder was a checkpoint, although it has no valid manifest.
bool was_checkpoint(const fs::path& folder) {
  std::error_code error;
  const auto type = fs::symlink_status(folder / kManifestName, error).type();
  return checkpoint_number(folder) || (type != fs::file_type::not_found && !error);
}

}  // namespace

NewestCheckpoint find_newest(const fs::path& folder, Verify verify) {
  NewestCheckpoint newest;
  std::vector<CommitOrder> candidates;
  for (const fs::path& path : candidates_in(folder)) {
    if (is_temporary_name(path.filename().native())) {
      newest.skipped.push_back({path, kUnfinished});
      continue;
    }
    std::string why_not;
    // It may be the newest, so an older one must not be used silently.
    const auto refuse = [](const CheckpointError& error) { throw CheckpointError(error); };
    if (const auto manifest = manifest_of(path, why_not, refuse)) {
      candidates.push_back(commit_order(manifest->sequence, path));
    } else {
      newest.skipped.push_back({path, why_not, was_checkpoint(path)});
    }
  }
  std::sort(candidates.rbegin(), candidates.rend());
  for (const auto& [sequence, is_folder, path] : candidates) {
    try {
      const StoredCheckpoint verified(path, verify);
      newest.path = path;
      break;
    } catch (const CheckpointError& error) {
      newest.skipped.push_back({path, error.what(), true});
    }
  }
  std::sort(newest.skipped.begin(), newest.skipped.end(), [](const auto& left, const auto& right) {
    return left.path < right.path;
  });
  return newest;
}

std::vector<CheckpointEntry> list_checkpoints(const fs::path& folder, Verify verify) {
  std::vector<CheckpointEntry> found;
  for (const fs::path& path : candidates_in(folder)) {
    CheckpointEntry listed{.path = path, .manifest = std::nullopt, .why = ""};
    if (is_temporary_name(path.filename().native())) {
      listed.why = kUnfinished;
    } else if (why_not_folder(path)) {
      listed.why = not_a_checkpoint(path).what();
    } else {
      try {
        listed.manifest = read_manifest(path);
        const StoredCheckpoint verified(path, verify);
      } catch (const CheckpointError& error) {
        listed.why = error.what();
      }
    }
    found.push_back(std::move(listed));
  }
  const auto order = [](const CheckpointEntry& listed) {
    constexpr int64_t kLast = std::numeric_limits<int64_t>::max();
    return listed.manifest ? commit_order(listed.manifest->sequence, listed.path)
                           : CommitOrder(kLast, true, listed.path);
  };
  std::sort(
      found.begin(), found.end(), [&](const CheckpointEntry& left, const CheckpointEntry& right) {
        return order(left) < order(right);
      });
  return found;
}

std::optional<int64_t> checkpoint_number(const fs::path& path) {
  const std::string name = path.filename();
  const bool numbered =
      name.starts_with(kNumberedPrefix) && name.size() > kNumberedPrefix.size() &&
      name.size() <= kNumberedPrefix.size() + kMostDigits &&
      name.find_first_not_of("0123456789", kNumberedPrefix.size()) == std::string::npos;
  return numbered ? std::optional(std::stoll(name.substr(kNumberedPrefix.size()))) : std::nullopt;
}

int64_t next_checkpoint_number(const fs::path& folder) {
  int64_t next = 0;
  for (const fs::path& path : candidates_in(folder)) {
    next = std::max(next, checkpoint_number(path).value_or(-1) + 1);
  }
  return next;
}

int64_t next_sequence(const fs::path& folder) {
  int64_t highest = 0;
  for (const fs::path& path : candidates_in(folder)) {
    if (is_temporary_name(path.filename().native())) {
      continue;
    }
    highest = std::max(highest, checkpoint_number(path).value_or(-1) + 1);
    std::string why_not;
    if (const auto manifest = manifest_of(path, why_not, [](const auto& /*newer*/) {})) {
      highest = std::max(highest, manifest->sequence);
    }
  }
  return highest + 1;
}

void write_latest(const fs::path& folder, const std::string& name) {
  const fs::path latest = folder / kLatestName;
  check_file_name(latest, name);
  const fs::path temporary = temporary_name(latest);
  OutputFile file(temporary);
  file.append(name + "\n");
  file.finish();
  if (std::rename(temporary.c_str(), latest.c_str()) != 0) {
    const int why = errno;
    std::remove(temporary.c_str());
    errno = why;
    throw_errno(latest, "cannot be replaced");
  }
  sync_folder(folder.empty() ? "." : folder);
}

std::optional<std::string> read_latest(const fs::path& folder) {
  const fs::path latest = folder / kLatestName;
  if (!name_exists(latest)) {
    return std::nullopt;
  }
  std::string name = read_file(latest, 4096);
  if (name.ends_with('\n')) {
    name.pop_back();
  }
  check_file_name(latest, name);
  return name;
}

}  // namespace lockstep::storage
