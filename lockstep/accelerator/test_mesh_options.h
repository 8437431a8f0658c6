// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/tensor_parallel/test_gpt.h"

namespace lockstep {

/// Returns the options of training on a mesh. The `plan` counts if the mesh has tp. For tests.
inline AcceleratorOptions mesh_options(
    const MeshShape& mesh, TensorPlan plan, int zero_stage, bool sequence_parallel = false) {
  AcceleratorOptions options;
  options.mesh = mesh;
  options.tensor_parallel = {
      .plan = std::move(plan), .sequence_parallel = sequence_parallel, .without_example = true};
  if (zero_stage > 0) {
    options.zero = ZeroPlugin{.stage = zero_stage};
  }
  return options;
}

/// Returns the plan of a list of test_gpt's layers, by the names of the first one and of the last.
inline TensorPlan plan_of_list(const char* words, const char* head) {
  return {
      {words, TensorStyle::kEmbedding},
      {"*.qkv", TensorStyle::kColwise, {1, 1, 1}},
      {"*.out", TensorStyle::kRowwise},
      {"*.up", TensorStyle::kColwise},
      {"*.down", TensorStyle::kRowwise},
      {head, TensorStyle::kColwiseGather}};
}

}  // namespace lockstep
