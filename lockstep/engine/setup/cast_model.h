// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/ds_config/ds_config.h"

namespace lockstep {

/// The dtypes of a model's floating-point tensors in a ds_config.json.
struct ModelDtypes {
  std::optional<at::ScalarType> parameters = std::nullopt;  ///< None: unchanged.
  std::optional<at::ScalarType> buffers = std::nullopt;     ///< None: unchanged.
  /// Name patterns of buffers that are always float32; see matches_part_of.
  std::vector<std::string> fp32_buffers = {};
};
ModelDtypes model_dtypes(const ds_config::DataTypesSection& section);

/// Casts a model in place, as DeepSpeed's engine does: each tensor gets new memory and remains the
/// same tensor; a gradient of another dtype is dropped. Parameters are cast to `parameters`,
/// regardless of their names. Local.
void cast_model(
    const NamedTensors& parameters, const NamedTensors& buffers, const ModelDtypes& dtypes);

bool any_trained_in_16_bits(const NamedTensors& parameters);

/// Returns whether `pattern`, in which * is any text, matches any part of `name`.
bool matches_part_of(const std::string& name, const std::string& pattern);

}  // namespace lockstep
