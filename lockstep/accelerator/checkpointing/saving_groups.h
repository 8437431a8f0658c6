// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/comm/group.h"

namespace lockstep::internal {

/// The processes that must agree on a checkpoint, and those that write one together: the same
/// unless each host saves separately.
struct SavingGroups {
  Group all;
  Group disk;

  /// Returns whether each host's processes write to their own disk.
  bool on_each_host() const { return disk.size() != all.size(); }
  /// Returns whether this process writes the files that one process of each disk writes.
  bool is_writer() const { return disk.rank() == 0; }
  /// Returns groups whose operations wait for slow disks; see checkpoint::with_saving_timeout.
  SavingGroups with_saving_timeout() const;
};

/// Calls `report` on the leading process of each disk, and returns their reports on every process.
/// Throws CheckpointError, naming `folder`, on every process if one of them throws. Collective.
std::vector<std::string> reports_of_disks(
    const SavingGroups& groups,
    const std::filesystem::path& folder,
    const std::function<std::string()>& report);

/// Throws CheckpointError on all ranks if one of them has a `failure`. `could_not`: the verb of the
/// message. Collective; see first_failure.
void throw_together(
    Group& group,
    const std::string& failure,
    const std::filesystem::path& folder,
    const char* could_not);

}  // namespace lockstep::internal
