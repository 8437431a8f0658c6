// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "lockstep/watch/rank_view.h"

namespace lockstep::watch {

/// The operations of all ranks of a job at one moment. It is written when a job fails, and
/// read by `lockstep flight`.
struct FlightDump {
  std::string run_id;
  std::string why;     ///< The reason of the failure.
  std::string time;    ///< Time of the dump, in UTC.
  int64_t now_ns = 0;  ///< The time on the operations' clock.
  std::vector<RankView> ranks;
};

nlohmann::ordered_json to_json(const RankView& view);
/// Parses a rank of a dump. Throws nlohmann's exceptions for invalid content.
RankView view_of(const nlohmann::ordered_json& json);

/// Writes JSON: {"format": "lockstep-flight", "version": 2, ...}. Atomic, with mode 0600. Throws
/// Error if it cannot be written.
void write_dump(const FlightDump& dump, const std::filesystem::path& path);

/// Reads a dump. Throws ConfigError, naming the file, if it cannot be read or is not a dump of this
/// version.
FlightDump read_dump(const std::filesystem::path& path);

}  // namespace lockstep::watch
