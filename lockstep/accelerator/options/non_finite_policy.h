// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string_view>

#include "lockstep/base/enum_words.h"

namespace lockstep {

/// The reaction to losses and gradients that are NaN or infinite.
enum class NonFinitePolicy {
  kIgnore,  ///< No check, no reaction.
  kSkip,    ///< Skip the update, on every process, with a warning.
  kStop     ///< Throw on every process.
};

template <>
inline constexpr std::array<std::string_view, 3> kWordsOf<NonFinitePolicy> = {
    "ignore", "skip", "stop"};

}  // namespace lockstep
