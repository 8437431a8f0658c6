// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/ds_config/ds_config.h"
#include "lockstep/engine/profiler/flops_counter.h"

namespace lockstep {

/// One micro-step, as flops_profiler sees it.
struct FlopsProfile {
  ModuleTree modules;
  FlopsCounter forward;
  double forward_ms = 0;
  double backward_ms = 0;
  double step_ms = 0;
  // Filled in at the end.
  int64_t update = 0;  ///< Updates before it.
  int64_t micro_batch_size = 0;
  int ranks = 1;

  void clear();
};

/// For people, several lines: totals, classes of modules by depth, and with `detailed` a tree of
/// modules and a table of operations, those of most FLOPs first. See ModuleTree for what counts as
/// which module's.
std::string render_flops(
    const FlopsProfile& profile, const ds_config::FlopsProfilerSection& section);

/// The same where `section` wants it: in its output_file, which is replaced, or logged. Error,
/// naming the file, if it cannot be written.
void report_flops(const FlopsProfile& profile, const ds_config::FlopsProfilerSection& section);

}  // namespace lockstep
