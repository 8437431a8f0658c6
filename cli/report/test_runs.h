// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include <fmt/format.h>

#include "lockstep/base/test_folder.h"

namespace lockstep::cli {

// Files of runs, as a training writes them. For tests.

inline std::string step_header(int rank, int world, double time = 100) {
  return fmt::format(
      R"({{"format":"lockstep-steps","version":1,"rank":{},"world":{},"time":{},"run_id":"r4f","host":"h{}","environment":{{"device":"cpu","threads":1}}}})"
      "\n",
      rank,
      world,
      time,
      rank);
}

/// A record of `steps` updates up to `step`, each of 0.01 s, of which `communication` waits.
inline std::string step_line(
    int64_t step, int64_t steps, double loss, double communication = 0.002) {
  const auto count = static_cast<double>(steps);
  return fmt::format(
      R"({{"step":{},"time":{},"seconds":{},"forward":{},"communication":{},"steps":{},"longest":0.011,"samples":{},"process_bytes":1048576,"loss":{},"lr":0.5}})"
      "\n",
      step,
      100.0 + static_cast<double>(step),
      0.01 * count,
      (0.01 - communication) * count,
      communication * count,
      steps,
      8 * steps,
      loss);
}

inline std::filesystem::path write_step_file(
    const std::filesystem::path& folder, int rank, const std::string& lines) {
  std::filesystem::create_directories(folder);
  return write_text(folder / fmt::format("steps_{}.jsonl", rank), lines);
}

}  // namespace lockstep::cli
