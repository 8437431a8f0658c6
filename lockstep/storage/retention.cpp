// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/retention.h"

#include <cerrno>
#include <cstdio>
#include <string>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/storage/catalog.h"
#include "lockstep/storage/files.h"
#include "lockstep/storage/temp_folder.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

bool is_numbered(const fs::path& path) {
  constexpr std::string_view kPrefix = "checkpoint_";
  const std::string name = path.filename();
  return name.starts_with(kPrefix) && name.size() > kPrefix.size() &&
         name.find_first_not_of("0123456789", kPrefix.size()) == std::string::npos;
}

/// Oldest first.
std::vector<fs::path> beyond_newest(const fs::path& folder, const PruneOptions& options) {
  std::vector<Listed> listed = list_checkpoints(folder);
  if (options.only_numbered) {
    std::erase_if(listed, [](const Listed& item) { return !is_numbered(item.path); });
  }
  size_t kept_from = listed.size();
  for (int kept = 0; kept_from > 0 && kept < options.keep; --kept_from) {
    const Listed& candidate = listed[kept_from - 1];
    kept += candidate.manifest && candidate.why.empty() ? 1 : 0;
  }
  std::vector<fs::path> old;
  for (size_t i = 0; i < kept_from; ++i) {
    if (listed[i].manifest) {
      old.push_back(listed[i].path);
    }
  }
  return old;
}

}  // namespace

std::vector<fs::path> prune(const fs::path& folder, const PruneOptions& options) {
  if (options.keep < 1) {
    throw ConfigError(
        "prune", fmt::format("would leave no checkpoint; got keep {}, expected 1", options.keep));
  }
  std::vector<fs::path> old = beyond_newest(folder, options);
  if (options.dry_run || old.empty()) {
    return old;
  }
  std::vector<fs::path> removed;
  std::vector<fs::path> renamed;
  for (const fs::path& path : old) {
    const fs::path name = temporary_name(path);
    if (std::rename(path.c_str(), name.c_str()) == 0) {
      removed.push_back(path);
      renamed.push_back(name);
    } else if (errno != ENOENT) {
      throw_errno(path, "cannot be renamed to be removed");
    }
  }
  // The new names must reach the disk before what they stand for goes.
  sync_folder(folder.empty() ? "." : folder);
  for (const fs::path& path : renamed) {
    std::error_code error;
    fs::remove_all(path, error);
    if (error) {
      throw CheckpointError(path, "cannot be removed; " + error.message());
    }
  }
  return removed;
}

}  // namespace lockstep::checkpoint
