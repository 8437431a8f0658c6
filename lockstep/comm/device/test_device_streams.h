// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

/// Implements the streams and events of the test device.
///
/// Work is executed when it is enqueued, unless streams are held (see test_device.h). Then copies
/// to the device on streams other than the default are executed when an event after them, or their
/// stream, is waited for. That is as late as on a GPU, so a read without waiting returns old
/// values.
///
/// Each thread has a current stream, as with CUDA. Thread-safe.
namespace lockstep::test_streams {

/// Returns this thread's current stream of `device`.
c10::Stream current(at::Device device);
/// Makes `stream` the current one of its device. Returns the previous one.
c10::Stream exchange(c10::Stream stream);
/// Returns a new stream.
c10::Stream from_pool(at::Device device);

/// Enqueues `work` on `stream`.
void enqueue(c10::Stream stream, std::function<void()> work);
/// Records an event after the work enqueued on `stream` so far. `event`: an existing one, or null.
void record(void** event, c10::Stream stream);
void destroy(void* event) noexcept;
/// Executes all work before the event.
void wait_for(void* event);
bool is_done(void* event);
void wait_for(c10::Stream stream);

/// See test_device.h.
void hold(bool hold);

}  // namespace lockstep::test_streams
