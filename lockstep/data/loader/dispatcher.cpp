// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/loader/dispatcher.h"

#include <future>
#include <string>

#include <fmt/format.h>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/rank.h"
#include "lockstep/comm/byte_collectives.h"

namespace lockstep::data {
namespace {

// The fields of a header, int64 [kHeaderSize], in this order.
enum Field : int {
  kKind,
  kEpoch,
  kIndex,
  kGlobalBatchRows,
  kFirstSample,
  kSamples,
  kPayloadBytes,
  kHeaderSize
};
enum Kind : int64_t { kRound, kEnd, kFailure };

constexpr int64_t kNoPayload = -1;

}  // namespace

DispatchChannel::DispatchChannel(Group group, const ShardLayout& layout, int64_t epoch)
    : group_(std::move(group)),
      global_batch_rows_(layout.global_batch_rows()),
      first_sample_(layout.first_sample()),
      epoch_(epoch) {}

void DispatchChannel::send_headers(
    int64_t kind, int64_t index, int64_t samples, const std::vector<int64_t>& sizes) {
  at::Tensor headers = at::empty({int64_t{kHeaderSize} * size()}, at::kLong);
  int64_t* header = headers.mutable_data_ptr<int64_t>();
  for (const int64_t payload_bytes : sizes) {
    header[kKind] = kind;
    header[kEpoch] = epoch_;
    header[kIndex] = index;
    header[kGlobalBatchRows] = global_batch_rows_;
    header[kFirstSample] = first_sample_;
    header[kSamples] = samples;
    header[kPayloadBytes] = payload_bytes;
    header += kHeaderSize;
  }
  group_.scatter(at::empty({kHeaderSize}, at::kLong), headers).wait();
}

void DispatchChannel::send_round(
    int64_t index, int64_t samples, const std::vector<at::Tensor>& payloads) {
  std::vector<int64_t> sizes = {kNoPayload};
  for (const at::Tensor& payload : payloads) {
    sizes.push_back(payload.defined() ? payload.numel() : kNoPayload);
  }
  send_headers(kRound, index, samples, sizes);
  std::vector<Pending> sent;
  for (size_t i = 0; i < payloads.size(); ++i) {
    if (payloads[i].defined()) {
      sent.push_back(group_.send(payloads[i], static_cast<int>(i) + 1));
    }
  }
  for (Pending& pending : sent) {
    pending.wait();
  }
}

void DispatchChannel::send_end(int64_t index) {
  send_headers(kEnd, index, 0, std::vector<int64_t>(static_cast<size_t>(size()), kNoPayload));
}

void DispatchChannel::send_failure(int64_t index, const std::string& why) {
  send_headers(kFailure, index, 0, std::vector<int64_t>(static_cast<size_t>(size()), kNoPayload));
  broadcast_bytes(group_, why);
}

std::optional<DispatchChannel::Arrival> DispatchChannel::receive(int64_t index) {
  const at::Tensor header =
      group_.scatter(at::empty({kHeaderSize}, at::kLong), at::Tensor()).wait();
  const int64_t* field = header.const_data_ptr<int64_t>();
  if (field[kKind] == kFailure) {
    const std::string why = broadcast_bytes(group_, std::string());
    throw Error(
        "dispatch",
        fmt::format(
            "rank 0 could not read batch {} of epoch {} for all ranks: {}",
            field[kIndex],
            field[kEpoch],
            why));
  }
  Arrival arrival{.samples = field[kSamples], .payload = {}};
  if (field[kKind] == kRound && field[kPayloadBytes] != kNoPayload) {
    // Received even if it is of another step, since rank 0 waits until it is received.
    arrival.payload = group_.recv(at::empty({field[kPayloadBytes]}, at::kByte), 0).wait();
  }
  if (field[kEpoch] != epoch_ || field[kIndex] != index ||
      field[kGlobalBatchRows] != global_batch_rows_ || field[kFirstSample] != first_sample_) {
    throw Error(
        "dispatch",
        fmt::format(
            "the ranks are at different positions: rank 0 at batch {} of epoch {} (pass from "
            "sample {}, {} samples per step), this rank at batch {} of epoch {} (pass from sample "
            "{}, {} samples per step); all ranks must leave a loop at the same batch, and load the "
            "same position",
            field[kIndex],
            field[kEpoch],
            field[kFirstSample],
            field[kGlobalBatchRows],
            index,
            epoch_,
            first_sample_,
            global_batch_rows_));
  }
  return field[kKind] == kEnd ? std::nullopt : std::optional(std::move(arrival));
}

void DispatchChannel::log_waiting(int64_t index) const noexcept {
  try {
    log_warning(
        fmt::format(
            "[dispatch] a loop ended early and waits for {} at batch {} of epoch {}; all ranks "
            "must leave the loop at the same batch",
            rank() == 0 ? "the other ranks" : "rank 0",
            index,
            epoch_),
        LogAudience::kEveryRank);
  } catch (...) {  // A failure to log must not end the job.
  }
}

void DispatchChannel::log_failed(int64_t index, const char* why) const noexcept {
  try {
    log_error(fmt::format(
        "[dispatch] a loop ended early, and the transfer of batch {} of epoch {} failed: {}",
        index,
        epoch_,
        why));
  } catch (...) {  // As above.
  }
}

struct TransferThread::Running {
  std::future<void> ended;
};

TransferThread::TransferThread() = default;
TransferThread::~TransferThread() = default;

void TransferThread::start(std::function<void()> transfer) {
  running_ = std::make_unique<Running>(Running{
      std::async(std::launch::async, [transfer = std::move(transfer), label = current_rank()] {
        const ThreadRankScope scope(label);
        const c10::NoGradGuard no_grad;
        transfer();
      })});
}

bool TransferThread::wait_for(std::chrono::milliseconds timeout) const {
  return running_->ended.wait_for(timeout) == std::future_status::ready;
}

void TransferThread::finish() {
  const std::unique_ptr<Running> running = std::move(running_);
  running->ended.get();
}

}  // namespace lockstep::data
