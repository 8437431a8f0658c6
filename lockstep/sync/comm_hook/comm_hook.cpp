// SPDX-License-Identifier: Apache-2.0
#include "lockstep/sync/comm_hook/comm_hook.h"

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ops/sub.h>
#include <ATen/ops/zeros_like.h>

#include "lockstep/base/error.h"
#include "lockstep/sync/comm_hook/averaging_all_reduce.h"
#include "lockstep/sync/comm_hook/hook_state.h"
#include "lockstep/sync/comm_hook/power_sgd.h"

namespace lockstep {
namespace {

bool is_cast(CommHookType type) {
  return type == CommHookType::kFp16 || type == CommHookType::kBf16;
}

bool is_power_sgd(CommHookType type) {
  return type == CommHookType::kPowerSgd || type == CommHookType::kBatchedPowerSgd;
}

[[noreturn]] void refuse(const std::string& why) {
  throw ConfigError("comm_hook", why);
}

/// Averages each bucket by one all-reduce, in float16 or bfloat16 if the options or the bucket say
/// so.
class AllReduceHook final : public CommHook {
 public:
  AllReduceHook(
      const CommHookOptions& options,
      Group group,
      const std::vector<flat::GradBucket>& buckets,
      const NamedTensors& parameters);

  void start(size_t bucket) override;
  void finish() override;
  void abandon(bool wait) noexcept override;
  CommHookState state() const override;
  void check_state(const CommHookState& state) const override;
  void load_state(const CommHookState& state) override;

 private:
  void pack_with_feedback(size_t bucket);

  CommHookType type_;
  Group group_;
  const std::vector<flat::GradBucket>& buckets_;
  std::vector<std::string> names_;               ///< [parameter]
  std::vector<AveragingAllReduce> all_reduces_;  ///< [bucket]
  std::vector<at::Tensor> errors_;  ///< [bucket] like its gradients; undefined without feedback
  size_t started_ = 0;
  int64_t iteration_ = 0;
};

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
    all_reduces_.emplace_back(
        values, bucket.comm_dtype().value_or(hook_comm_dtype(options.type, values.scalar_type())));
    const bool feedback =
        options.use_error_feedback.value_or(false) && all_reduces_.back().is_cast();
    errors_.push_back(feedback ? at::zeros_like(bucket.gradients()) : at::Tensor());
  }
}

void AllReduceHook::start(size_t bucket) {
  if (errors_[bucket].defined()) {
    pack_with_feedback(bucket);
  } else {
    all_reduces_[bucket].pack(group_);
  }
  all_reduces_[bucket].send(group_);
  started_ = bucket + 1;
}

void AllReduceHook::pack_with_feedback(size_t index) {
  const flat::GradBucket& bucket = buckets_[index];
  const std::vector<bool> present = bucket.flags();
  // A parameter without a gradient here may have a gradient on no rank, and would get no average:
  // its error stays.
  for (size_t entry = 0; entry < present.size(); ++entry) {
    const flat::BucketEntry& place = bucket.entries()[entry];
    if (present[entry]) {
      bucket.flat_gradient(entry).add_(errors_[index].narrow(0, place.offset, place.numel));
    }
  }
  all_reduces_[index].pack(group_);
  for (size_t entry = 0; entry < present.size(); ++entry) {
    const flat::BucketEntry& place = bucket.entries()[entry];
    if (present[entry]) {
      at::Tensor error = errors_[index].narrow(0, place.offset, place.numel);
      const at::Tensor sent = all_reduces_[index].sent().narrow(0, place.offset, place.numel);
      at::sub_out(error, bucket.flat_gradient(entry), sent, group_.size());
      // An overflow must not stay in the error.
      error.nan_to_num_(0, 0, 0);
    }
  }
}

void AllReduceHook::finish() {
  for (size_t i = 0; i < started_; ++i) {
    all_reduces_[i].finish();
  }
  started_ = 0;
  ++iteration_;
}

void AllReduceHook::abandon(bool wait) noexcept {
  for (AveragingAllReduce& all_reduce : all_reduces_) {
    all_reduce.abandon(wait);
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

}  // namespace

const char* name_of(CommHookType type) {
  switch (type) {
    case CommHookType::kNone:
      return "none";
    case CommHookType::kFp16:
      return "fp16";
    case CommHookType::kBf16:
      return "bf16";
    case CommHookType::kPowerSgd:
      return "power_sgd";
    case CommHookType::kBatchedPowerSgd:
      return "batched_power_sgd";
  }
  return "unknown";
}

void check_options(const CommHookOptions& options) {
  const PowerSgdOptions& power = options.power_sgd;
  if (options.wrapper != CommHookType::kNone && !is_power_sgd(options.type)) {
    refuse(fmt::format(
        "wrapper needs type power_sgd, whose messages it casts; got wrapper {} with type {}, "
        "expected type power_sgd; set type to {} instead, or to power_sgd",
        name_of(options.wrapper),
        name_of(options.type),
        is_cast(options.wrapper) ? name_of(options.wrapper) : "fp16 or bf16"));
  }
  if (is_power_sgd(options.wrapper)) {
    refuse(fmt::format(
        "invalid wrapper; got {}, expected fp16, bf16 or none", name_of(options.wrapper)));
  }
  if (options.type == CommHookType::kNone && options.use_error_feedback) {
    refuse(
        "use_error_feedback is set without compression, which leaves no error to feed back; leave "
        "it unset");
  }
  if (!is_power_sgd(options.type)) {
    if (power != PowerSgdOptions{}) {
      refuse(fmt::format(
          "options of PowerSGD have no effect on {}; set type to power_sgd, or remove them",
          name_of(options.type)));
    }
    return;
  }
  if (power.matrix_approximation_rank < 1 || power.start_iter < 0 ||
      !(power.min_compression_rate > 0) || !(power.orthogonalization_epsilon >= 0)) {
    refuse(fmt::format(
        "PowerSGD needs a rank of at least 1, start_iter of at least 0, min_compression_rate above "
        "0 and an epsilon of at least 0; got {}, {}, {} and {}",
        power.matrix_approximation_rank,
        power.start_iter,
        power.min_compression_rate,
        power.orthogonalization_epsilon));
  }
}

std::unique_ptr<CommHook> make_comm_hook(
    const CommHookOptions& options,
    Group group,
    const std::vector<flat::GradBucket>& buckets,
    const NamedTensors& parameters) {
  check_options(options);
  if (is_power_sgd(options.type)) {
    return std::make_unique<PowerSgdHook>(options, std::move(group), buckets, parameters);
  }
  return std::make_unique<AllReduceHook>(options, std::move(group), buckets, parameters);
}

}  // namespace lockstep
