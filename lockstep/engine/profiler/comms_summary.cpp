// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/profiler/comms_summary.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace lockstep {
namespace {

std::string key_of(const CommsLogRow& row) {
  return fmt::format("{} {} {}", row.operation, row.bytes, row.ranks);
}

/// Returns the fastest rank's time of each row.
std::vector<double> fastest_times(const std::vector<CommsLogRow>& rows, Accelerator& accelerator) {
  nlohmann::json mine = nlohmann::json::object();
  for (const CommsLogRow& row : rows) {
    mine[key_of(row)] = row.total_ms;
  }
  const std::vector<nlohmann::json> all = accelerator.gather_object(mine);
  std::vector<double> fastest_ms;
  for (const CommsLogRow& row : rows) {
    double least = row.total_ms;
    for (const nlohmann::json& theirs : all) {
      least = std::min(least, theirs.value(key_of(row), row.total_ms));
    }
    fastest_ms.push_back(least);
  }
  return fastest_ms;
}

}  // namespace

std::string render_comms_summary(
    const CommsLog& log, Accelerator& accelerator, bool show_straggler) {
  const std::vector<CommsLogRow> rows = log.rows();
  return render_comms(
      rows, show_straggler ? fastest_times(rows, accelerator) : std::vector<double>());
}

}  // namespace lockstep
