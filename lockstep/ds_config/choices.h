// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string_view>

#include "lockstep/base/enum_words.h"

namespace lockstep {
namespace ds_config {

enum class TagValidation { kWarn, kIgnore, kFail };
enum class AllreduceOp { kMean, kSum };

}  // namespace ds_config

template <>
inline constexpr std::array<std::string_view, 3> kWordsOf<ds_config::TagValidation> = {
    "WARN", "IGNORE", "FAIL"};
template <>
inline constexpr std::array<std::string_view, 2> kWordsOf<ds_config::AllreduceOp> = {"mean", "sum"};

}  // namespace lockstep
