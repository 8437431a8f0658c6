// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "lockstep/base/memory/offload_device.h"

namespace lockstep::ds_config {

enum class Dtype { kFloat32, kFloat16, kBfloat16 };
enum class TagValidation { kWarn, kIgnore, kFail };
enum class AllreduceOp { kMean, kSum };

/// The texts of a file for an enum's values, in their order.
template <typename E>
inline constexpr std::array<std::string_view, 0> kWords = {};
template <>
inline constexpr std::array<std::string_view, 3> kWords<Dtype> = {"fp32", "fp16", "bf16"};
template <>
inline constexpr std::array<std::string_view, 3> kWords<OffloadDevice> = {"none", "cpu", "nvme"};
template <>
inline constexpr std::array<std::string_view, 3> kWords<TagValidation> = {"WARN", "IGNORE", "FAIL"};
template <>
inline constexpr std::array<std::string_view, 2> kWords<AllreduceOp> = {"mean", "sum"};

template <typename E>
std::string word_of(E value) {
  return std::string(kWords<E>.at(static_cast<size_t>(value)));
}

}  // namespace lockstep::ds_config
