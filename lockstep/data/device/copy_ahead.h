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

/// A batch whose copy to a device may not be complete.
template <typename Batch>
struct PendingBatch {
  Batch batch;
  /// Recorded after its copies; null: nothing was copied.
  std::shared_ptr<c10::Event> copied = nullptr;
  /// Recorded after the work that produced tensors already on the device.
  std::shared_ptr<c10::Event> produced = nullptr;
};

/// Copies batches to a device on a separate stream, in parallel with computation.
///
/// All copies of the process share one stream, since the caching allocator reuses memory only
/// within a stream. `send` starts the copies, on any thread, and does not wait for earlier work of
/// the device. `receive`, on the loop's thread, makes the current stream wait for the copies and
/// for the producer of tensors that were already on the device; the host does not wait. The memory
/// is kept until that stream's work before the batch's release is done. A batch that was sent may
/// be dropped without receiving it. Copies from the host to CUDA use pinned memory; for other
/// devices `send` may block.
///
/// Does nothing for the host, or without a device. Thread-safe.
class CopyAhead {
 public:
  CopyAhead() = default;
  explicit CopyAhead(const std::optional<at::Device>& device);

  template <typename Batch>
  PendingBatch<Batch> send(Batch batch) const {
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
  Batch receive(PendingBatch<Batch> arriving) const {
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
  /// Returns an event recorded after the work enqueued on `stream` so far.
  static std::shared_ptr<c10::Event> recorded(const c10::Stream& stream);
  /// Returns an event recorded on the current stream if any of `tensors` is on the device, else
  /// null.
  std::shared_ptr<c10::Event> recorded_producer(const std::vector<at::Tensor>& tensors) const;
  /// Makes the current stream wait.
  void wait_for(c10::Event& event) const;
  /// Keeps the memory of `tensors` for the current stream.
  void record_use(const std::vector<at::Tensor>& tensors) const;

  std::optional<at::Device> device_;
  std::optional<c10::Stream> stream_;  ///< Unset for the host.
};

}  // namespace lockstep::data
