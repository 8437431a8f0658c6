// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "lockstep/watch/rank_view.h"

namespace lockstep::watch {

/// What all ranks of a job were doing at one moment: kept when a job fails, read by `lockstep
/// flight`.
struct FlightDump {
  std::string run_id;
  std::string why;     ///< Of the failure.
  std::string time;    ///< When, in UTC.
  int64_t now_ns = 0;  ///< When, by the clock of the operations.
  std::vector<RankView> ranks;
};

/// A rank as a dump holds it; nlohmann's exceptions for what is no such thing.
nlohmann::ordered_json to_json(const RankView& view);
RankView view_of(const nlohmann::ordered_json& json);

/// JSON: {"format": "lockstep-flight", "version": 1, ...}. All or nothing, as a file for its owner
/// alone. Error if it cannot be written.
void write_dump(const FlightDump& dump, const std::filesystem::path& path);

/// ConfigError, naming the file, if it cannot be read or is no dump of this version.
FlightDump read_dump(const std::filesystem::path& path);

}  // namespace lockstep::watch
