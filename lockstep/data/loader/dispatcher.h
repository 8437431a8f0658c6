// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <future>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/rank.h"
#include "lockstep/comm/group.h"
#include "lockstep/data/loader/steps.h"
#include "lockstep/data/loader/tensor_serializer.h"
#include "lockstep/data/order/cursor.h"

namespace lockstep::data {

/// Carries steps from rank 0 to the others. All ranks call the same of these at the same step.
class StepChannel {
 public:
  /// What a rank other than 0 gets of a step.
  struct Arrival {
    int64_t samples = 0;  ///< Of the step's layout.
    at::Tensor payload;   ///< Undefined: this rank has no batch in the step.
  };

  StepChannel(Group group, const ShardLayout& layout, int64_t epoch);

  int rank() const { return group_.rank(); }
  int size() const { return group_.size(); }

  // On rank 0. `payloads`: of ranks 1, 2, ...; undefined for one without a batch.
  void send_step(int64_t index, int64_t samples, const std::vector<at::Tensor>& payloads);
  void send_end(int64_t index);
  void send_failure(int64_t index, const std::string& why);

  /// On the others. Nothing at the end. Error, naming rank 0, if it failed or stands elsewhere.
  std::optional<Arrival> receive(int64_t index);

  /// How long a rank that left its loop waits for the others before it says so.
  static constexpr std::chrono::seconds kPatience{2};
  // On any rank that left its loop while step `index` was under way: for the log.
  void say_waiting(int64_t index) const noexcept;
  void say_failed(int64_t index, const char* why) const noexcept;

 private:
  void send_headers(
      int64_t kind, int64_t index, int64_t samples, const std::vector<int64_t>& sizes);

  Group group_;
  int64_t global_batch_rows_;
  int64_t first_sample_;
  int64_t epoch_;
};

/// Steps that rank 0 alone reads and the other ranks receive, each its own batch in its own shape;
/// they are the same batches as without dispatching.
///
/// - One step is always under way: while the loop has batch k, k + 1 is sent, and rank 0's workers
///   read further ahead. It travels on a group of its own, on a thread of its own, so it neither
///   waits for the training's operations nor mixes with them.
/// - Step k + 1 is started by handing out step k and by nothing else. So ranks that leave a loop at
///   the same batch have started the same transfers, and all of them end: leaving waits for one.
/// - What rank 0's dataset throws is thrown there, and on every other rank as an Error that names
///   rank 0 and the reason.
/// - A rank whose loop is at another step than rank 0's (it left early, alone) gets an Error that
///   says so when the two next meet. Leaving a loop further along than others did waits for them:
///   until their next pass, or the group's timeout. It says so in the log after 2 s, and how it
///   ended.
///
/// Cost: rank 0 reads everything and copies what it sends once; one small scatter and N - 1
/// messages a step. After Accelerate's DataLoaderDispatcher, whose ranks must have one shape.
template <typename Batch>
class Dispatcher final : public Steps<Arriving<Batch>> {
 public:
  using LocalBatch = Arriving<Batch>;

  /// `source`: the steps of all ranks, on rank 0; null elsewhere. `send` sees this rank's own
  /// batches, on the transfer's thread. Starts the first transfer.
  Dispatcher(
      Group group,
      std::unique_ptr<Steps<Batch>> source,
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
    if (!transfer_.valid()) {
      return;
    }
    if (transfer_.wait_for(StepChannel::kPatience) != std::future_status::ready) {
      channel_.say_waiting(pending_index_);
    }
    try {
      transfer_.get();
    } catch (const std::exception& error) {
      channel_.say_failed(pending_index_, error.what());
    } catch (...) {
      channel_.say_failed(pending_index_, "something unknown was thrown");
    }
  }
  Dispatcher(const Dispatcher&) = delete;
  Dispatcher& operator=(const Dispatcher&) = delete;

  std::optional<Step<LocalBatch>> next() override {
    if (!transfer_.valid()) {
      return std::nullopt;
    }
    std::optional<Step<LocalBatch>> step = transfer_.get();
    if (!step) {
      return std::nullopt;
    }
    // Rank 0 has the most batches, so its last one is the last of all.
    if (step->index + 1 < step->layout.size(0)) {
      start(step->index + 1);
    }
    return step->batches.front() ? std::move(step) : std::nullopt;
  }

 private:
  void start(int64_t index) {
    pending_index_ = index;
    transfer_ = std::async(std::launch::async, [this, index, label = current_rank()] {
      const ThreadRankScope scope(label);
      const c10::NoGradGuard no_grad;
      return source_ ? send(index) : receive(index);
    });
  }

  std::optional<Step<LocalBatch>> send(int64_t index) {
    std::optional<Step<Batch>> step;
    std::optional<Step<LocalBatch>> local;
    std::vector<at::Tensor> payloads;
    try {
      step = source_->next();
      for (int rank = 1; step && rank < channel_.size(); ++rank) {
        const std::optional<Batch>& batch = step->batches[static_cast<size_t>(rank)];
        payloads.push_back(batch ? packed(*batch) : at::Tensor());
      }
      if (step) {
        local.emplace(Step<LocalBatch>{step->index, step->layout, {}});
        std::optional<Batch>& front = step->batches.front();
        local->batches.push_back(front ? std::optional(send_(*std::move(front))) : std::nullopt);
      }
    } catch (const std::exception& error) {
      channel_.send_failure(index, error.what());
      throw;
    } catch (...) {
      channel_.send_failure(index, "something unknown was thrown");
      throw;
    }
    if (step) {
      channel_.send_step(index, step->layout.samples(), payloads);
    } else {
      channel_.send_end(index);
    }
    return local;
  }

  std::optional<Step<LocalBatch>> receive(int64_t index) {
    const std::optional<StepChannel::Arrival> arrival = channel_.receive(index);
    if (!arrival) {
      return std::nullopt;
    }
    Step<LocalBatch> step{index, layout_.with_samples(arrival->samples), {}};
    step.batches.emplace_back();
    if (arrival->payload.defined()) {
      TensorDeserializer deserializer(arrival->payload);
      Batch batch{};
      unpack(batch, deserializer);
      step.batches.front() = send_(std::move(batch));
    }
    return step;
  }

  static at::Tensor packed(const Batch& batch) {
    TensorSerializer serializer;
    pack(batch, serializer);
    return serializer.bytes();
  }

  StepChannel channel_;
  ShardLayout layout_;
  std::unique_ptr<Steps<Batch>> source_;
  SendBatch<Batch> send_;
  int64_t pending_index_ = 0;  ///< Its index.
  /// The step under way; last, for its end is awaited before anything it uses goes.
  std::future<std::optional<Step<LocalBatch>>> transfer_;
};

}  // namespace lockstep::data
