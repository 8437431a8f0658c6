// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <c10/core/Device.h>

namespace lockstep {

/// "device 0.41 GB (most 0.52), reserved 0.60; process 1.20 GB (most 1.31); host 20.1 of 62.8 GB":
/// what is in use on a CUDA device, of which nothing is said for another, by this process, and on
/// its host. What the kernel does not tell is left out. GB are 2^30 bytes. Thread-safe.
std::string memory_in_use(c10::Device device);

}  // namespace lockstep
