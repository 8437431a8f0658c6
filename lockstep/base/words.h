// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep {

/// The words of files, programs and messages for the values of an enum, in their order. An enum
/// has its words beside it.
template <typename E>
inline constexpr std::array<std::string_view, 0> kWordsOf = {};

template <typename E>
std::string word_of(E value) {
  return std::string(kWordsOf<E>.at(static_cast<size_t>(value)));
}

}  // namespace lockstep
