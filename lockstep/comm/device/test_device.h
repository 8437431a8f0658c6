// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

namespace lockstep {

/// A device for tests, with two of its kind, whose memory is the host's: what a program does with a
/// GPU (moving models, batches and optimizer state there, working on it from several threads) can
/// be tested where there is none. Libtorch takes its tensors for those of another device, as it
/// does a plug-in's ("PrivateUse1"), and computes on the CPU. From the first call on it is this
/// process's accelerator.
///
/// All work on it is done when a call returns, unless it is told to hold streams; graphs that are
/// captured on it (at::accelerator::Graph) are replayed as a GPU's, see test_device_graph.h.
///
/// What it cannot show: streams that overtake one another.
at::Device test_device(int index = 0);

/// While true, its events say that what comes before them is not done.
void hold_test_device_events(bool hold);

/// While true, what is copied to it on another than the default stream arrives when something waits
/// for an event recorded behind it, or for the stream; see test_device_streams.h.
void hold_test_device_streams(bool hold);

/// Whether the memory of `tensor`, of this device, is kept for work on `stream`: the last that was
/// recorded for it (c10's recordDataPtrOnStream).
bool test_device_keeps_for(const at::Tensor& tensor, c10::Stream stream);

/// How often the host has waited for what is on it: read a number, copied a tensor from it, waited
/// for a stream or an event. Kernels, which compute on the host, do not count.
int64_t test_device_reads();

/// Bytes that tensors on it take now, on both of them together.
int64_t test_device_bytes();

/// From now on what would make it more than `bytes` is refused as a GPU refuses what it has no room
/// for: c10::OutOfMemoryError. None: it has room for all.
void limit_test_device(std::optional<int64_t> bytes);

}  // namespace lockstep
