// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include <nlohmann/json.hpp>

namespace lockstep::tracking {

/// The data of a run in an event file of TensorBoard: of Lockstep's tracker, or of another program
/// that writes scalars as simple values, as torch's SummaryWriter does.
struct EventFile {
  /// By name and step; the later of two values of a step.
  std::map<std::string, std::map<int64_t, double>> scalars;
  nlohmann::json config;    ///< Null unless Lockstep's tracker stored one.
  std::string status;       ///< "finished" or "failed"; empty: no end is recorded.
  bool is_complete = true;  ///< False if it ends in a record that is incomplete or damaged.
};

/// Returns whether the name of a file is that of an event file.
bool is_event_file_name(const std::string& name);

/// Reads a file, one record at a time. Throws ConfigError, naming it, if it cannot be read.
EventFile read_event_file(const std::filesystem::path& path);

}  // namespace lockstep::tracking
