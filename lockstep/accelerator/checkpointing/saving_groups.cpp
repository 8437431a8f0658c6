// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/checkpointing/saving_groups.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/writer.h"
#include "lockstep/comm/byte_collectives.h"
#include "lockstep/comm/fail_together.h"

namespace lockstep::internal {
namespace {

// The first character of a report: processes other than the leading ones send an empty text.
constexpr char kReport = '+';

}  // namespace

SavingGroups SavingGroups::with_saving_timeout() const {
  return {
      .all = checkpoint::with_saving_timeout(all), .disk = checkpoint::with_saving_timeout(disk)};
}

std::vector<std::string> reports_of_disks(
    const SavingGroups& groups,
    const std::filesystem::path& folder,
    const std::function<std::string()>& report) {
  std::string own;
  const std::string failure = failure_of([&] {
    if (groups.is_writer()) {
      own = kReport + report();
    }
  });
  Group all = groups.all;
  throw_together(all, failure, folder, "failed");
  std::vector<std::string> reports;
  for (const std::string& text : all_gather_bytes(all, own)) {
    if (!text.empty()) {
      reports.push_back(text.substr(1));
    }
  }
  return reports;
}

void throw_together(
    Group& group,
    const std::string& failure,
    const std::filesystem::path& folder,
    const char* could_not) {
  if (const auto failed = first_failure(group, failure)) {
    throw CheckpointError(
        folder.string(), fmt::format("rank {} {}: {}", failed->rank, could_not, failed->why));
  }
}

}  // namespace lockstep::internal
