// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/catalog.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/storage/files.h"
#include "lockstep/storage/output_file.h"
#include "lockstep/storage/safetensors_header.h"
#include "lockstep/storage/temp_folder.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLatestName = "latest";

/// Folders that could be checkpoints; links to some are left to those who made them.
std::vector<fs::path> folders_in(const fs::path& parent) {
  std::vector<fs::path> folders;
  std::error_code error;
  fs::directory_iterator entry(parent.empty() ? "." : parent, error);
  if (error == std::errc::no_such_file_or_directory) {
    return folders;
  }
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (entry->symlink_status(error).type() == fs::file_type::directory &&
        !entry->path().filename().native().starts_with('.')) {
      folders.push_back(entry->path());
    }
  }
  if (error) {
    throw CheckpointError(parent, "cannot be listed; " + error.message());
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

}  // namespace

Newest find_newest(const fs::path& folder, Verify verify) {
  Newest newest;
  std::vector<std::pair<int64_t, fs::path>> candidates;
  for (const fs::path& path : folders_in(folder)) {
    if (is_temporary_name(path.filename().native())) {
      newest.skipped.push_back({path, "is what a save left that did not end, or is going on"});
      continue;
    }
    try {
      candidates.emplace_back(read_manifest(path).sequence, path);
    } catch (const CheckpointError& error) {
      newest.skipped.push_back({path, error.what()});
    }
  }
  std::sort(candidates.rbegin(), candidates.rend());
  for (const auto& [sequence, path] : candidates) {
    try {
      const StoredCheckpoint whole(path, verify);
      newest.path = path;
      break;
    } catch (const CheckpointError& error) {
      newest.skipped.push_back({path, error.what()});
    }
  }
  std::sort(newest.skipped.begin(), newest.skipped.end(), [](const auto& left, const auto& right) {
    return left.path < right.path;
  });
  return newest;
}

int64_t next_sequence(const fs::path& folder) {
  int64_t highest = 0;
  for (const fs::path& path : folders_in(folder)) {
    try {
      if (!is_temporary_name(path.filename().native())) {
        highest = std::max(highest, read_manifest(path).sequence);
      }
    } catch (const CheckpointError&) {
      continue;  // Something else, or torn: it will never be read, so it need not be counted.
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

}  // namespace lockstep::checkpoint
