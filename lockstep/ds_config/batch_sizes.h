// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/ds_config/ds_config.h"

namespace lockstep::ds_config {

/// What a file says of the three; not set where it says nothing, or "auto".
struct GivenBatchSizes {
  Resolved<std::optional<int64_t>> train_batch_size;
  Resolved<std::optional<int64_t>> train_micro_batch_size_per_gpu;
  Resolved<std::optional<int64_t>> gradient_accumulation_steps;
};

/// DeepSpeed's rule: what is missing follows from the others, and micro-steps are one where nothing
/// says how many; then the product must come out. `fault` says what is wrong, "" if nothing is.
struct ResolvedBatchSizes {
  BatchSizes sizes;
  std::string fault;
};

/// All given sizes are at least 1; `world_size`, too.
ResolvedBatchSizes resolve_batch_sizes(const GivenBatchSizes& given, int64_t world_size);

}  // namespace lockstep::ds_config
