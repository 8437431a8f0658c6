// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/checkpoint/checkpoint_options.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"

namespace lockstep {

CheckpointTag::CheckpointTag(double number) : text_(nlohmann::json(number).dump()) {}

checkpoint::SaveModelOptions save_16bit_options(
    const ds_config::DsConfig& config,
    const std::string& file_name,
    std::optional<at::ScalarType> dtype) {
  if (dtype && *dtype != at::kHalf && *dtype != at::kBFloat16) {
    throw ConfigError(
        "save_16bit_model",
        fmt::format(
            "expected a dtype of 16 bits, at::kHalf or at::kBFloat16; got {}",
            c10::toString(*dtype)));
  }
  const FloatDtype compute_dtype = config.precision.value;
  if (!dtype && compute_dtype == FloatDtype::kFloat32) {
    throw ConfigError(
        "save_16bit_model",
        "the model computes in float32, so the 16-bit dtype is unknown; pass at::kHalf or "
        "at::kBFloat16, or save float32 with accelerator().save_model");
  }
  return {
      .dtype = dtype.value_or(compute_dtype == FloatDtype::kFloat16 ? at::kHalf : at::kBFloat16),
      .file_name = file_name};
}

}  // namespace lockstep
