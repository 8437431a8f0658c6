// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/checkpointing/saving_groups.h"

#include <exception>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/rank.h"
#include "lockstep/checkpoint/writer.h"
#include "lockstep/comm/byte_collectives.h"

namespace lockstep {

SavingGroups SavingGroups::with_saving_timeout() const {
  return {
      .all = checkpoint::with_saving_timeout(all), .disk = checkpoint::with_saving_timeout(disk)};
}

std::vector<std::string> reports_of_disks(
    const SavingGroups& groups,
    const std::filesystem::path& folder,
    const std::function<std::string()>& report) {
  std::string own;
  if (groups.is_writer()) {
    try {
      own = "+" + report();
    } catch (const std::exception& error) {
      own = "-" + without_rank_suffix(error.what());
    }
  }
  Group all = groups.all;
  std::vector<std::string> reports;
  const std::vector<std::string> texts = all_gather_bytes(all, own);
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank].starts_with('-')) {
      throw CheckpointError(
          folder.string(), fmt::format("rank {} failed: {}", rank, texts[rank].substr(1)));
    }
    if (!texts[rank].empty()) {
      reports.push_back(texts[rank].substr(1));
    }
  }
  return reports;
}

void throw_together(
    Group& group,
    const std::string& failure,
    const std::filesystem::path& folder,
    const char* could_not) {
  const std::vector<std::string> failures = all_gather_bytes(group, failure);
  for (size_t rank = 0; rank < failures.size(); ++rank) {
    if (!failures[rank].empty()) {
      throw CheckpointError(
          folder.string(), fmt::format("rank {} {}: {}", rank, could_not, failures[rank]));
    }
  }
}

}  // namespace lockstep
