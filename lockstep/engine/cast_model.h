// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "lockstep/comm/named_tensor.h"
#include "lockstep/ds_config/ds_config.h"

namespace lockstep {

/// The dtypes that a ds_config.json gives a model's floating-point tensors.
struct ModelDtypes {
  std::optional<at::ScalarType> parameters = std::nullopt;  ///< None: as they are.
  std::optional<at::ScalarType> buffers = std::nullopt;     ///< None: as they are.
  /// Patterns of buffers that are float32 whatever `buffers` says; see matches_part_of.
  std::vector<std::string> fp32_buffers = {};
};
ModelDtypes model_dtypes(const ds_config::DataTypesSection& section);
at::ScalarType scalar_type_of(ds_config::Dtype dtype);

/// Casts a model, as DeepSpeed's engine does: each tensor gets other memory, and stays what it is
/// for who holds it; a gradient of another dtype is dropped. Parameters follow `parameters` alone,
/// whatever their names. Local.
void cast_model(
    const NamedTensors& parameters, const NamedTensors& buffers, const ModelDtypes& dtypes);

bool any_trained_in_16_bits(const NamedTensors& parameters);

/// Whether `pattern`, in which * is any text, matches any part of `name`.
bool matches_part_of(const std::string& name, const std::string& pattern);

}  // namespace lockstep
