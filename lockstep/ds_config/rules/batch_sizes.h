// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/ds_config/ds_config.h"

namespace lockstep::ds_config {

/// The three batch sizes of a file; not set if missing or "auto".
struct GivenBatchSizes {
  Resolved<std::optional<int64_t>> train_batch_size;
  Resolved<std::optional<int64_t>> train_micro_batch_size_per_gpu;
  Resolved<std::optional<int64_t>> gradient_accumulation_steps;
};

struct ResolvedBatchSizes {
  BatchSizes sizes;
  std::string fault;  ///< Describes an error; "" if there is none.
};

/// Applies DeepSpeed's rule: missing sizes follow from the others, with one micro-step if
/// unspecified; the product must match. All given sizes and `world_size` are at least 1.
ResolvedBatchSizes resolve_batch_sizes(const GivenBatchSizes& given, int64_t world_size);

}  // namespace lockstep::ds_config
