// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include <c10/core/Device.h>

namespace lockstep {

/// A device for tests, with two of its kind, whose memory is the host's: what a program does with a
/// GPU (moving models, batches and optimizer state there, working on it from several threads) can
/// be tested where there is none. Libtorch takes its tensors for those of another device, as it
/// does a plug-in's ("PrivateUse1"), and computes on the CPU. From the first call on it is this
/// process's accelerator.
///
/// What it cannot show: the order of streams. All work on it is done when a call returns, though
/// events may say otherwise.
at::Device test_device(int index = 0);

/// While true, its events say that what comes before them is not done.
void hold_test_device_events(bool hold);

/// Bytes that tensors on it take now, on both of them together.
int64_t test_device_bytes();

/// From now on what would make it more than `bytes` is refused as a GPU refuses what it has no room
/// for: c10::OutOfMemoryError. None: it has room for all.
void limit_test_device(std::optional<int64_t> bytes);

}  // namespace lockstep
