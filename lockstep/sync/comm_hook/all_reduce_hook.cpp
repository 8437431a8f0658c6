// SPDX-License-Identifier: Apache-2.0
#include "lockstep/sync/comm_hook/all_reduce_hook.h"

#include <utility>

#include <ATen/ops/sub.h>
#include <ATen/ops/zeros_like.h>

#include "lockstep/sync/comm_hook/hook_state.h"

namespace lockstep {

AllReduceHook::AllReduceHook(
    const CommHookOptions& options,
    Group group,
    const std::vector<flat::GradBucket>& buckets,
    const NamedTensors& parameters)
    : type_(options.type), group_(std::move(group)), buckets_(buckets) {
  for (const NamedTensor& item : parameters) {
    names_.push_back(item.name);
  }
  for (const flat::GradBucket& bucket : buckets_) {
    const at::Tensor& values = bucket.buffer();
    messages_.emplace_back(
        values, bucket.comm_dtype().value_or(wire_type(options.type, values.scalar_type())));
    const bool feedback = options.use_error_feedback.value_or(false) && messages_.back().narrows();
    errors_.push_back(feedback ? at::zeros_like(bucket.gradients()) : at::Tensor());
  }
}

void AllReduceHook::start(size_t bucket) {
  if (errors_[bucket].defined()) {
    pack_with_feedback(bucket);
  } else {
    messages_[bucket].pack(group_);
  }
  messages_[bucket].send(group_);
  started_ = bucket + 1;
}

void AllReduceHook::pack_with_feedback(size_t index) {
  const flat::GradBucket& bucket = buckets_[index];
  const std::vector<bool> present = bucket.flags();
  // A parameter without a gradient here may have none anywhere, and then nothing of it is
  // delivered: its error waits.
  for (size_t entry = 0; entry < present.size(); ++entry) {
    const flat::BucketEntry& place = bucket.entries()[entry];
    if (present[entry]) {
      bucket.flat(entry).add_(errors_[index].narrow(0, place.offset, place.numel));
    }
  }
  messages_[index].pack(group_);
  for (size_t entry = 0; entry < present.size(); ++entry) {
    const flat::BucketEntry& place = bucket.entries()[entry];
    if (present[entry]) {
      at::Tensor error = errors_[index].narrow(0, place.offset, place.numel);
      const at::Tensor sent = messages_[index].wire().narrow(0, place.offset, place.numel);
      at::sub_out(error, bucket.flat(entry), sent, group_.size());
      // One overflow must not stay in the memory for ever.
      error.nan_to_num_(0, 0, 0);
    }
  }
}

void AllReduceHook::finish() {
  for (size_t i = 0; i < started_; ++i) {
    messages_[i].finish();
  }
  started_ = 0;
  ++iteration_;
}

void AllReduceHook::abandon(bool wait) noexcept {
  for (Message& message : messages_) {
    message.abandon(wait);
  }
  started_ = 0;
}

CommHookState AllReduceHook::state() const {
  if (type_ == CommHookType::kNone) {
    return {};
  }
  CommHookState state{.iteration = iteration_, .tensors = {}};
  for (size_t i = 0; i < buckets_.size(); ++i) {
    if (errors_[i].defined()) {
      for (const flat::BucketEntry& entry : buckets_[i].entries()) {
        state.tensors.push_back(
            {"error/" + names_[static_cast<size_t>(entry.parameter)],
             errors_[i].narrow(0, entry.offset, entry.numel)});
      }
    }
  }
  return state;
}

void AllReduceHook::check_state(const CommHookState& state) const {
  check_hook_tensors(state, this->state().tensors);
}

void AllReduceHook::load_state(const CommHookState& state) {
  copy_hook_tensors(state, this->state().tensors);
  iteration_ = state.iteration;
}

}  // namespace lockstep
