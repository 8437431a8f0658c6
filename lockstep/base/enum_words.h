// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep {

/// Lists the words of files and messages for the values of an enum, in the values' order. Each enum
/// that has words specializes it, next to the enum.
template <typename E>
inline constexpr std::array<std::string_view, 0> kWordsOf = {};

/// Returns the word of a value. Throws std::out_of_range for a number that is no value of the enum.
template <typename E>
std::string word_of(E value) {
  return std::string(kWordsOf<E>.at(static_cast<size_t>(value)));
}

}  // namespace lockstep
