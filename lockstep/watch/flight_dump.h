// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "lockstep/watch/rank_view.h"

namespace lockstep::watch {

/// The operations of all ranks of a job at one moment, written when a job fails and read by
/// `lockstep flight`.
struct FlightDump {
  std::string run_id;
  std::string why;     ///< The reason of the failure.
  std::string time;    ///< When, in UTC.
  int64_t now_ns = 0;  ///< The time on the operations' clock.
  std::vector<RankView> ranks;
};

/// Parses a rank of a dump; nlohmann's exceptions for invalid content.
nlohmann::ordered_json to_json(const RankView& view);
RankView view_of(const nlohmann::ordered_json& json);

/// Writes JSON: {"format": "lockstep-flight", "version": 1, ...}. Atomic, with mode 0600. Error if
/// it cannot be written.
void write_dump(const FlightDump& dump, const std::filesystem::path& path);

/// ConfigError, naming the file, if it cannot be read or is no dump of this version.
FlightDump read_dump(const std::filesystem::path& path);

}  // namespace lockstep::watch
