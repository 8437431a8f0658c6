// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/ds_config/ds_config.h"
#include "lockstep/engine/profiler/flops_counter.h"

namespace lockstep {

/// The measurements of one micro-step for flops_profiler.
struct FlopsProfile {
  ModuleTree modules;
  FlopsCounter forward;
  double forward_ms = 0;
  double backward_ms = 0;
  double step_ms = 0;
  // Set at the end.
  int64_t update = 0;  ///< Updates before it.
  int64_t micro_batch_size = 0;
  int ranks = 1;

  void clear();
};

/// Renders a report for people, several lines: totals, classes of modules by depth, and with
/// `detailed` a tree of modules and a table of operations by FLOPs. See ModuleTree for the
/// attribution to modules.
std::string render_flops(
    const FlopsProfile& profile, const ds_config::FlopsProfilerSection& section);

/// Writes the report as `section` says: to its output_file, which is replaced, or to the log.
/// Throws Error, naming the file, if it cannot be written.
void report_flops(const FlopsProfile& profile, const ds_config::FlopsProfilerSection& section);

}  // namespace lockstep
