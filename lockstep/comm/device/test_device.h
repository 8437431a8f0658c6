// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

namespace lockstep {

/// Returns a simulated device for tests on machines without a GPU; there are two of them.
///
/// Its memory is the host's. Libtorch treats its tensors as a plug-in's ("PrivateUse1"), and
/// computes on the CPU. From the first call on it is this process's accelerator. All work is done
/// when a call returns, unless streams are held. Captured graphs (at::accelerator::Graph) are
/// replayed as on a GPU, see test_device_graph.h. It cannot simulate streams that overtake one
/// another.
at::Device test_device(int index = 0);

/// Makes the device's events report, while `hold` is true, that the work before them is not done.
void hold_test_device_events(bool hold);

/// Delays copies to the device on streams other than the default, while `hold` is true. Such a copy
/// is executed when an event after it, or its stream, is waited for; see test_device_streams.h.
void hold_test_device_streams(bool hold);

/// Returns whether the memory of `tensor` is kept for work on `stream`: the last stream recorded
/// for it (c10's recordDataPtrOnStream).
bool test_device_keeps_for(const at::Tensor& tensor, c10::Stream stream);

/// Returns how often the host has waited for the device. The host waits when it reads a number,
/// copies a tensor from the device, or waits for a stream or an event. Kernels, which run on the
/// host, do not count.
int64_t test_device_reads();

/// Returns the bytes of the existing tensors on both devices together.
int64_t test_device_bytes();

/// Limits the device's memory to `bytes`; nothing: no limit. An allocation beyond the limit throws
/// c10::OutOfMemoryError, as on a GPU.
void limit_test_device(std::optional<int64_t> bytes);

}  // namespace lockstep
