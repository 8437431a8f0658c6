// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <c10/core/ScalarType.h>

namespace lockstep {

/// What a model computes in. Parameters, gradients and optimizer state stay in their own dtype.
enum class Precision {
  kNo,    ///< In the parameters' dtype.
  kFP16,  ///< Autocast to fp16, with a GradScaler.
  kBF16,  ///< Autocast to bf16.
};

/// "no", "fp16" or "bf16", as Accelerate's mixed_precision names them.
const char* name_of(Precision precision);

/// The one with that name; ConfigError for any other, with what was probably meant.
Precision parse_precision(const std::string& name);

/// What autocast casts to: fp16 or bf16. ConfigError for kNo, which casts nothing.
c10::ScalarType autocast_dtype(Precision precision);

}  // namespace lockstep
