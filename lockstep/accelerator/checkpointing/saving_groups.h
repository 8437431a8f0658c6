// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/comm/group.h"

namespace lockstep {

/// The processes that must agree on a checkpoint, and those that write one together: the same
/// unless each host saves separately.
struct SavingGroups {
  Group all;
  Group disk;

  /// Returns whether each host's processes write to a disk of their own.
  bool on_each_host() const { return disk.size() != all.size(); }
  /// Returns whether this process writes what one process of a disk writes.
  bool leads() const { return disk.rank() == 0; }
  /// Returns groups whose operations wait for slow disks; see checkpoint::patient.
  SavingGroups patient() const;
};

/// Calls `report` on the leading process of each disk, and returns their reports on every process.
/// CheckpointError, naming `folder`, on every process if one of them throws. Collective.
std::vector<std::string> reports_of_disks(
    const SavingGroups& groups,
    const std::filesystem::path& folder,
    const std::function<std::string()>& report);

}  // namespace lockstep
