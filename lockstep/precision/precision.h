// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include <c10/core/ScalarType.h>

#include "lockstep/base/float_dtype.h"

namespace lockstep {

/// The precision of a model's computation. Parameters, gradients and optimizer state keep their own
/// dtype.
enum class Precision {
  kNo,    ///< In the parameters' dtype.
  kFP16,  ///< Autocast to fp16, with a GradScaler.
  kBF16,  ///< Autocast to bf16.
};

/// Returns "no", "fp16" or "bf16", as Accelerate's mixed_precision names them.
const char* name_of(Precision precision);

/// Returns the precision with this name. Throws ConfigError for any other, with the nearest name.
Precision parse_precision(const std::string& name);

/// Returns the dtype that autocast casts to: fp16 or bf16. Throws ConfigError for kNo.
c10::ScalarType autocast_dtype(Precision precision);

c10::ScalarType scalar_type_of(FloatDtype dtype);
std::optional<c10::ScalarType> scalar_type_of(const std::optional<FloatDtype>& dtype);

}  // namespace lockstep
