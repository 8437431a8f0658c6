// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <c10/core/Device.h>

namespace lockstep {

/// Describes the memory in use: "device 0.41 GB (peak 0.52), reserved 0.60; process 1.20 GB (peak
/// 1.31); host 20.1 of 62.8 GB". The first part only for a CUDA device. Values that the kernel does
/// not report are omitted. GB are 2^30 bytes. Thread-safe.
std::string memory_in_use(c10::Device device);

}  // namespace lockstep
