// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

#include "lockstep/data/device/device.h"
#include "lockstep/data/sample/nested.h"

namespace lockstep::data {

/// A batch that may be on its way to a device.
template <typename Batch>
struct Arriving {
  Batch batch;
  std::shared_ptr<c10::Event> copied = nullptr;  ///< Behind its copies; null: it is there.
  std::shared_ptr<c10::Event> produced =
      nullptr;  ///< Behind what made it, if that was on the device.
};

/// Copies batches to a device on a stream of their own, so that they travel beside what the device
/// computes: one stream for all copies of the process, since the memory they have had is given to
/// others of the same stream alone.
///
/// `send` starts the copies, on any thread, and does not wait for what the device was told before.
/// `receive`, on the loop's thread, makes the current stream wait for them, and for what had made
/// on the device what was there already, not the host; the memory is kept for what that stream is
/// told before the batch is let go, then goes back to the copies. A batch that is sent and never
/// received is let go without harm. From the host to CUDA copies are made from pinned memory; to
/// another device `send` may wait for them.
///
/// Nothing is done for the host, or without a device. Thread-safe.
class CopyAhead {
 public:
  CopyAhead() = default;
  explicit CopyAhead(const std::optional<at::Device>& device);

  template <typename Batch>
  Arriving<Batch> send(Batch batch) const {
    if constexpr (Transferable<Batch>) {
      if (stream_) {
        std::shared_ptr<c10::Event> produced = recorded_producer(tensors_of(batch));
        const c10::StreamGuard guard(*stream_);
        Batch copy = to_device(std::move(batch), stream_->device(), /*non_blocking=*/true);
        return {std::move(copy), recorded(*stream_), std::move(produced)};
      }
      if (device_) {
        return {to_device(std::move(batch), *device_)};
      }
    }
    return {std::move(batch)};
  }

  template <typename Batch>
  Batch receive(Arriving<Batch> arriving) const {
    if constexpr (Transferable<Batch>) {
      if (arriving.copied) {
        wait_for(*arriving.copied);
        if (arriving.produced) {
          wait_for(*arriving.produced);
        }
        record_use(tensors_of(arriving.batch));
      }
    }
    return std::move(arriving.batch);
  }

 private:
  /// An event behind what `stream` was told so far.
  static std::shared_ptr<c10::Event> recorded(const c10::Stream& stream);
  /// If any of `tensors` is on the device already: behind what the current stream was told so far.
  std::shared_ptr<c10::Event> recorded_producer(const std::vector<at::Tensor>& tensors) const;
  /// Makes the current stream wait.
  void wait_for(c10::Event& event) const;
  /// What `tensors` lie in stays for the current stream.
  void record_use(const std::vector<at::Tensor>& tensors) const;

  std::optional<at::Device> device_;
  std::optional<c10::Stream> stream_;  ///< None where there is nothing to copy beside.
};

}  // namespace lockstep::data
