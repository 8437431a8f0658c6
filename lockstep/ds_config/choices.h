// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string_view>

#include "lockstep/base/enum_words.h"
#include "lockstep/base/memory/offload_device.h"

namespace lockstep {
namespace ds_config {

enum class Dtype { kFloat32, kFloat16, kBfloat16 };
enum class TagValidation { kWarn, kIgnore, kFail };
enum class AllreduceOp { kMean, kSum };

}  // namespace ds_config

template <>
inline constexpr std::array<std::string_view, 3> kWordsOf<ds_config::Dtype> = {
    "fp32", "fp16", "bf16"};
template <>
inline constexpr std::array<std::string_view, 3> kWordsOf<ds_config::TagValidation> = {
    "WARN", "IGNORE", "FAIL"};
template <>
inline constexpr std::array<std::string_view, 2> kWordsOf<ds_config::AllreduceOp> = {"mean", "sum"};

}  // namespace lockstep
