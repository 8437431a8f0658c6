// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "lockstep/pipeline_schedule/pipeline_schedule.h"

namespace lockstep::pipeline_schedule {

/// Returns all valid shapes of a kind with 1 to 8 ranks, 1 to 4 chunks and 1 to 32 micro-batches.
inline std::vector<ScheduleShape> valid_shapes(ScheduleKind kind) {
  const bool one_chunk = kind == ScheduleKind::kGPipe || kind == ScheduleKind::k1F1B;
  std::vector<ScheduleShape> shapes;
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (int chunks = kind == ScheduleKind::kInterleaved ? 2 : 1; chunks <= (one_chunk ? 1 : 4);
         ++chunks) {
      for (int batches = 1; batches <= 32; ++batches) {
        if (chunks == 1 || batches % std::max(1, batches / ranks) == 0) {
          shapes.push_back(
              {.kind = kind, .ranks = ranks, .chunks_per_rank = chunks, .micro_batches = batches});
        }
      }
    }
  }
  return shapes;
}

/// Returns the valid shapes of all kinds.
inline std::vector<ScheduleShape> valid_shapes() {
  std::vector<ScheduleShape> all;
  for (const ScheduleKind kind : kScheduleKinds) {
    for (const ScheduleShape& shape : valid_shapes(kind)) {
      all.push_back(shape);
    }
  }
  return all;
}

/// Describes a shape for failures: "1f1b, 4 ranks, 1 chunks, 8 micro-batches".
inline std::string describe(const ScheduleShape& shape) {
  return fmt::format(
      "{}, {} ranks, {} chunks, {} micro-batches",
      name_of(shape.kind),
      shape.ranks,
      shape.chunks_per_rank,
      shape.micro_batches);
}

}  // namespace lockstep::pipeline_schedule
