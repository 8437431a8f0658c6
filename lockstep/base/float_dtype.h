// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string_view>

#include "lockstep/base/enum_words.h"

namespace lockstep {

/// The dtypes of parameters and gradients, for options that are read without torch.
enum class FloatDtype { kFloat32, kFloat16, kBfloat16 };

template <>
inline constexpr std::array<std::string_view, 3> kWordsOf<FloatDtype> = {"fp32", "fp16", "bf16"};

}  // namespace lockstep
