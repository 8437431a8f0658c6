// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

/// The streams and events of the test device. What a stream is told is done at once, unless streams
/// are held (see test_device.h): then copies to the device on another than the default stream are
/// done when something waits for an event recorded behind them, or for the stream. That is as late
/// as a GPU might do them, so who reads without waiting reads what was there before.
///
/// Each thread has its own current stream, as with CUDA. Thread-safe.
namespace lockstep::test_streams {

c10::Stream current(at::Device device);
/// Makes `stream` the current one of its device; the one that was.
c10::Stream exchange(c10::Stream stream);
/// Another one each time.
c10::Stream from_pool(at::Device device);

/// Has `stream` do `work`.
void tell(c10::Stream stream, std::function<void()> work);
/// An event behind all that `stream` was told so far; `event` is one from before, or null.
void record(void** event, c10::Stream stream);
void destroy(void* event) noexcept;
/// All that comes before the event is done.
void wait_for(void* event);
bool is_done(void* event);
void wait_for(c10::Stream stream);

/// See test_device.h.
void hold(bool hold);

}  // namespace lockstep::test_streams
