// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string_view>

#include "lockstep/base/enum_words.h"

namespace lockstep {

/// Selects the memory for offloaded tensors. It is in this folder because the parser of
/// ds_config.json, which is built without torch, uses it too.
enum class OffloadDevice {
  kNone,  ///< On the device.
  kCpu,   ///< In the host's memory.
  kNvme   ///< In files, best on a fast disk that nothing else uses.
};

template <>
inline constexpr std::array<std::string_view, 3> kWordsOf<OffloadDevice> = {"none", "cpu", "nvme"};

}  // namespace lockstep
