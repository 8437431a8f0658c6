// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group.h"
#include "lockstep/data/loader/batch_source.h"
#include "lockstep/data/loader/tensor_serializer.h"
#include "lockstep/data/order/cursor.h"

namespace lockstep::data {

/// Sends rounds from rank 0 to the other ranks. All ranks call matching functions for each round.
class DispatchChannel {
 public:
  /// The part of a round that a rank other than 0 receives.
  struct Arrival {
    int64_t samples = 0;  ///< Samples of the round's layout.
    at::Tensor payload;   ///< uint8 [n]; undefined if this rank has no batch in the round.
  };

  DispatchChannel(Group group, const ShardLayout& layout, int64_t epoch);

  int rank() const { return group_.rank(); }
  int size() const { return group_.size(); }

  // For rank 0. `payloads`: of ranks 1, 2, ...; undefined for a rank without a batch.
  void send_round(int64_t index, int64_t samples, const std::vector<at::Tensor>& payloads);
  void send_end(int64_t index);
  void send_failure(int64_t index, const std::string& why);

  /// Receives a round on a rank other than 0. Returns nothing at the end. Throws Error if rank 0
  /// failed or is at another round.
  std::optional<Arrival> receive(int64_t index);

  /// Time after which a rank that left its loop early logs that it waits for the others.
  static constexpr std::chrono::seconds kLogDelay{2};
  // Called by a rank that left its loop while round `index` was being sent.
  void log_waiting(int64_t index) const noexcept;
  void log_failed(int64_t index, const char* why) const noexcept;

 private:
  void send_headers(
      int64_t kind, int64_t index, int64_t samples, const std::vector<int64_t>& sizes);

  Group group_;
  int64_t global_batch_rows_;
  int64_t first_sample_;
  int64_t epoch_;
};

/// Runs one function at a time on another thread, with the caller's rank label and gradients off.
class TransferThread {
 public:
  TransferThread();
  /// Waits for a running function.
  ~TransferThread();
  TransferThread(const TransferThread&) = delete;
  TransferThread& operator=(const TransferThread&) = delete;

  /// Starts `transfer`. The previous function must be finished.
  void start(std::function<void()> transfer);
  /// Returns whether a function was started, and finish() was not called for it.
  bool is_started() const { return running_ != nullptr; }
  /// Blocks until the function ends, at most for `timeout`. Returns whether it has ended.
  bool wait_for(std::chrono::milliseconds timeout) const;
  /// Blocks until the function ends; throws its exception.
  void finish();

 private:
  struct Running;
  std::unique_ptr<Running> running_;
};

/// Lets rank 0 read every round and send each other rank its batch, in any shape. The batches are
/// the same as without dispatching.
///
/// - One round is sent in advance: while the loop has batch k, k + 1 is sent, and rank 0's workers
///   read further ahead. It uses a separate group and thread, so it neither waits for the
///   training's operations nor mixes with them.
/// - Only next() of round k starts round k + 1. So ranks that leave a loop at the same batch have
///   started the same transfers, and all of them complete: leaving waits for one.
/// - An exception of rank 0's dataset is thrown there, and on every other rank as an Error that
///   names rank 0 and the reason.
/// - A rank whose loop is at another round than rank 0's gets an Error in its next transfer. A rank
///   that leaves its loop later than others waits for their next pass, or for the group's timeout.
///   It logs that after 2 s, and the result.
///
/// Cost: rank 0 reads everything and copies what it sends once; one small scatter and N - 1
/// messages a round. Modelled on Accelerate's DataLoaderDispatcher, whose ranks must have one
/// shape.
template <typename Batch>
class Dispatcher final : public BatchSource<PendingBatch<Batch>> {
 public:
  using LocalBatch = PendingBatch<Batch>;

  /// `source`: the rounds of all ranks, on rank 0; null elsewhere. `send` is called with this
  /// rank's batches, on the transfer's thread. Starts the first transfer.
  Dispatcher(
      Group group,
      std::unique_ptr<BatchSource<Batch>> source,
      const ShardLayout& layout,
      const Cursor& cursor,
      SendBatch<Batch> send)
      : channel_(std::move(group), layout, cursor.epoch),
        layout_(layout),
        source_(std::move(source)),
        send_(std::move(send)) {
    start(cursor.batches);
  }
  ~Dispatcher() override {
    if (!transfer_.is_started()) {
      return;
    }
    if (!transfer_.wait_for(DispatchChannel::kLogDelay)) {
      channel_.log_waiting(pending_index_);
    }
    try {
      transfer_.finish();
    } catch (const std::exception& error) {
      channel_.log_failed(pending_index_, error.what());
    } catch (...) {
      channel_.log_failed(pending_index_, "an exception of unknown type was thrown");
    }
  }
  Dispatcher(const Dispatcher&) = delete;
  Dispatcher& operator=(const Dispatcher&) = delete;

  std::optional<RankBatches<LocalBatch>> next() override {
    if (!transfer_.is_started()) {
      return std::nullopt;
    }
    transfer_.finish();
    std::optional<RankBatches<LocalBatch>> round = std::exchange(pending_round_, std::nullopt);
    if (!round) {
      return std::nullopt;
    }
    // Rank 0 has the most batches, so its last one is the last of all.
    if (round->index + 1 < round->layout.size(0)) {
      start(round->index + 1);
    }
    return round->batches.front() ? std::move(round) : std::nullopt;
  }

 private:
  void start(int64_t index) {
    pending_index_ = index;
    transfer_.start([this, index] { pending_round_ = source_ ? send(index) : receive(index); });
  }

  std::optional<RankBatches<LocalBatch>> send(int64_t index) {
    std::optional<RankBatches<Batch>> round;
    std::optional<RankBatches<LocalBatch>> local;
    std::vector<at::Tensor> payloads;
    try {
      round = source_->next();
      for (int rank = 1; round && rank < channel_.size(); ++rank) {
        const std::optional<Batch>& batch = round->batches[static_cast<size_t>(rank)];
        payloads.push_back(batch ? packed(*batch) : at::Tensor());
      }
      if (round) {
        local.emplace(RankBatches<LocalBatch>{round->index, round->layout, {}});
        std::optional<Batch>& front = round->batches.front();
        local->batches.push_back(front ? std::optional(send_(*std::move(front))) : std::nullopt);
      }
    } catch (const std::exception& error) {
      channel_.send_failure(index, error.what());
      throw;
    } catch (...) {
      channel_.send_failure(index, "an exception of unknown type was thrown");
      throw;
    }
    if (round) {
      channel_.send_round(index, round->layout.samples(), payloads);
    } else {
      channel_.send_end(index);
    }
    return local;
  }

  std::optional<RankBatches<LocalBatch>> receive(int64_t index) {
    const std::optional<DispatchChannel::Arrival> arrival = channel_.receive(index);
    if (!arrival) {
      return std::nullopt;
    }
    RankBatches<LocalBatch> round{index, layout_.with_samples(arrival->samples), {}};
    round.batches.emplace_back();
    if (arrival->payload.defined()) {
      TensorDeserializer deserializer(arrival->payload);
      Batch batch{};
      unpack(batch, deserializer);
      round.batches.front() = send_(std::move(batch));
    }
    return round;
  }

  static at::Tensor packed(const Batch& batch) {
    TensorSerializer serializer;
    pack(batch, serializer);
    return serializer.bytes();
  }

  DispatchChannel channel_;
  ShardLayout layout_;
  std::unique_ptr<BatchSource<Batch>> source_;
  SendBatch<Batch> send_;
  int64_t pending_index_ = 0;                             ///< Index of the round in transfer_.
  std::optional<RankBatches<LocalBatch>> pending_round_;  ///< The result of transfer_.
  /// Last, since its destructor waits before the transfer's inputs are destroyed.
  TransferThread transfer_;
};

}  // namespace lockstep::data
