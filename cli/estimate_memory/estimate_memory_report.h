// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/common/report.h"
#include "cli/estimate_memory/estimate_memory.h"
#include "cli/estimate_memory/estimate_memory_model.h"
#include "lockstep/mesh/mesh_shape.h"

namespace lockstep::cli {

/// A checked request for an estimate.
struct EstimateRequest {
  std::string path;  ///< The model's path; empty: only the number of parameters is known.
  ModelSize size;
  std::optional<int64_t> largest_layer_parameters;  ///< As DeepSpeed counts them.
  std::vector<std::string> dtypes;                  ///< A subset of kEstimateDtypes.
  std::string optimizer;
  int64_t optimizer_numbers = 0;  ///< Numbers in the optimizer's state.
  std::string mixed_precision;    ///< no, fp16 or bf16.
  std::vector<int64_t> ranks;     ///< Each a multiple of `hosts`.
  int64_t hosts = 1;
  MeshShape mesh = {};  ///< Resolves to a mesh for each of `ranks`.
};

/// Formats the tables of `lockstep estimate-memory`.
Report estimate_report(const EstimateRequest& request);

}  // namespace lockstep::cli
