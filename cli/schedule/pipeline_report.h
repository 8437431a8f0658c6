// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>

#include "cli/common/report.h"
#include "lockstep/pipeline_schedule/pipeline_schedule.h"

namespace lockstep::cli {

constexpr int kMostPipelineStages = 1024;
constexpr int kMostPipelineMicroBatches = 10'000;
constexpr int kMostPipelineChunks = 26;  // The picture names chunks by letters.

struct PipelineRequest {
  std::optional<pipeline_schedule::ScheduleKind> kind =
      std::nullopt;  ///< Nothing: a comparison of all.
  int stages = 1;
  int micro_batches = 1;
  std::optional<int> chunks = std::nullopt;  ///< Of each stage. Default: 2 for interleaved, else 1.
  size_t columns = 0;                        ///< Of the terminal; 0: none, which counts as 80.
};

/// Reports the schedule of a pipeline as a picture, with its bubble and its activations; or a table
/// of all schedules. Throws ConfigError for a shape that the schedule refuses, or that is too large
/// to draw. The table shows the reason for a schedule that refuses the shape.
///
/// JSON of a schedule: {"pipeline", "stages", "micro_batches", "chunks", "time", "bubble",
/// "bubble_per_work", "activations": [of each rank], "ranks": [[{"action", "chunk", "micro_batch",
/// "start", "end"}]]}. The unit of time is the forward of a stage, that of activations a
/// micro-batch in a stage. JSON of the table: {"stages", "micro_batches", "schedules":
/// [{"pipeline", "chunks", "time", "bubble", "bubble_per_work", "activations"}, or {"pipeline",
/// "chunks", "error"}]}.
Report pipeline_report(const PipelineRequest& request);

}  // namespace lockstep::cli
