// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero/shard_reducer.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include <ATen/ops/empty.h>

#include "lockstep/base/error.h"
#include "lockstep/flat/coalesce.h"

namespace lockstep::zero {
namespace {

/// Buckets with full gradients at a time: one is filled, one is sent, one may wait.
constexpr size_t kBucketsInFlight = 3;

constexpr uint8_t kAddsToStale = 2;

}  // namespace

void StaleGradientCheck::mark(const ShardedModel& model) {
  stale_.clear();
  for (const auto& bucket : model.buckets()) {
    for (const ShardSlice& shard_slice : bucket->shard_slices()) {
      const at::Tensor& gradient = shard_slice.values.grad();
      if (gradient.defined()) {
        stale_.push_back({shard_slice.values, gradient.unsafeGetTensorImpl(), gradient._version()});
      }
    }
  }
}

bool StaleGradientCheck::any_left() const {
  return std::any_of(stale_.begin(), stale_.end(), [](const StaleGradient& stale) {
    const at::Tensor& gradient = stale.shard_slice.grad();
    return gradient.defined() && gradient.unsafeGetTensorImpl() == stale.gradient &&
           gradient._version() == stale.version;
  });
}

ShardReducer::ShardReducer(
    ShardedModel& model,
    SpeculativeTrigger& speculative,
    Group group,
    std::vector<at::Tensor> buffers,
    const LowPrecisionPolicy& low_precision_policy,
    bool model_communicates)
    : model_(model),
      speculative_(speculative),
      buffers_(std::move(buffers)),
      model_communicates_(model_communicates),
      holds_in_fp32_(low_precision_policy.fp32_masters && low_precision_policy.fp32_gradients),
      reduction_("zero", GradientReduction::Overlap::kAllowed, *this),
      present_(model.parameters().size(), false),
      held_(model.parameters().size()),
      had_gradient_(model.parameters().size(), false),
      placeholders_(model.parameters()),
      is_split_(model.parameters().size(), false) {
  common_.push_back({.group = std::move(group)});
  common_.push_back({.group = model.subgroup(), .is_subgroup = true});
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    common_[model.is_in_subgroup(i) ? 1 : 0].parameters.push_back(i);
  }
  if (common_[1].parameters.empty()) {
    common_.pop_back();
  }
  reduction_.set_layout(model.parameters().size(), model.members());
}

void ShardReducer::watch(const std::shared_ptr<void>& owner) {
  reduction_.watch(
      tensors_of(model_.parameters()), std::shared_ptr<GradientReduction>(owner, &reduction_));
}

void ShardReducer::before_gradient(size_t parameter) {
  apply_drop(parameter);
  placeholders_.remove(parameter);
}

void ShardReducer::begin_reduction() {
  apply_drops();
  adds_to_stale_ = stale_check_.any_left();
}

void ShardReducer::apply_drops() {
  for (size_t parameter = 0; parameter < present_.size(); ++parameter) {
    apply_drop(parameter);
  }
}

void ShardReducer::apply_drop(size_t parameter) {
  const bool has_part = model_.parameters()[parameter].tensor.grad().defined();
  if (placeholders_.was_dropped(parameter) || (is_split_[parameter] && !has_part)) {
    drop(parameter);
  }
}

/// Drops the gradient of one parameter: its sum on this rank, and its part in the shard.
void ShardReducer::drop(size_t parameter) {
  speculative_.discard_all();
  placeholders_.remove(parameter);
  held_[parameter].reset();
  const at::Tensor& tensor = model_.parameters()[parameter].tensor;
  for (const at::Tensor& slice : model_.slices().of({tensor})) {
    slice.mutable_grad().reset();
  }
  had_gradient_[parameter] = is_split_[parameter] = false;
  ++common_[model_.is_in_subgroup(parameter) ? 1 : 0].drops;
}

bool ShardReducer::on_gradient(size_t parameter, bool averages) {
  const at::Tensor& gradient = model_.parameters()[parameter].tensor.grad();
  if (gradient.defined() && gradient.layout() != at::kStrided) {
    throw ConfigError(
        "zero",
        fmt::format(
            "{} got a sparse gradient, which ZeRO cannot shard; build its layer with "
            "sparse=false, or train without ZeRO",
            parameter_name(parameter)));
  }
  if (!averages) {
    hold(parameter);
    is_split_[parameter] = had_gradient_[parameter] && !placeholders_.is_put(parameter);
  }
  return gradient.defined();
}

/// Gradients that are not held stay with their parameters: autograd adds to them.
void ShardReducer::hold(size_t parameter) {
  const at::Tensor& tensor = model_.parameters()[parameter].tensor;
  at::Tensor& gradient = tensor.mutable_grad();
  if (!holds_in_fp32_ || !is_trained_in_16_bits(tensor) || !gradient.defined()) {
    return;
  }
  at::Tensor& sum = held_[parameter];
  if (sum.defined()) {
    sum.add_(gradient);
  } else {
    sum = gradient.to(at::kFloat);
  }
  gradient.reset();
  placeholders_.put(parameter);
}

void ShardReducer::advance_before(size_t index) {
  ParamCoordinator* coordinator = model_.coordinator();
  for (size_t before = 0; before < index; ++before) {
    BucketGradients& earlier = model_.buckets()[before]->gradients();
    const bool must_end = before + kBucketsInFlight <= index;
    bool ends = false;
    if (coordinator == nullptr) {
      ends = must_end || (speculative_.enabled() && earlier.is_reduced());
    } else {
      const bool waits = must_end && model_communicates_;
      bool is_started = earlier.advance(waits);
      while (must_end && !waits && !(is_started && earlier.is_reduced())) {
        coordinator->serve();  // Other ranks may wait for a parameter before they reduce.
        is_started = earlier.advance(/*wait=*/false);
      }
      if (!is_started) {
        return;
      }
      ends = waits || earlier.is_reduced();
    }
    if (ends) {
      earlier.wait();
      speculative_.begin(before, present_);
    }
  }
}

void ShardReducer::start_bucket(size_t index) {
  advance_before(index);
  speculative_.discard(index);
  BucketGradients& gradients = model_.buckets()[index]->gradients();
  const std::vector<size_t>& members = model_.members()[index];
  for (size_t entry = 0; entry < members.size(); ++entry) {
    const size_t i = members[entry];
    placeholders_.remove(i);
    is_split_[i] = false;
    present_[i] = model_.parameters()[i].tensor.grad().defined() || held_[i].defined();
    if (present_[i]) {
      gradients.take(entry, std::exchange(held_[i], {}));
    }
  }
  gradients.start_reduce();
}

/// The message has 1 for each parameter with a gradient on any rank, else 0. Its first element is
/// greater if any rank adds to gradients that a step has used. DigestFlags follow.
void ShardReducer::start_presence(Common& common) {
  const auto count = static_cast<int64_t>(common.parameters.size());
  at::Tensor flags = at::empty({count + DigestFlags::kCount}, at::kByte);
  DigestFlags::write(
      flags.narrow(0, count, DigestFlags::kCount),
      digest(common),
      !common.is_subgroup && facts_.has_report && facts_.has_report());
  auto* values = flags.mutable_data_ptr<uint8_t>();
  std::transform(
      common.parameters.begin(), common.parameters.end(), values, [this](size_t parameter) {
        return present_[parameter] ? uint8_t{1} : uint8_t{0};
      });
  if (adds_to_stale_ && count > 0) {
    values[0] = kAddsToStale;
  }
  common.presence = common.group.all_reduce(flags, ReduceOp::kMax);
}

void ShardReducer::finish_buckets() {
  if (ParamCoordinator* coordinator = model_.coordinator()) {
    coordinator->wait_for_all(reduction_.reductions());
  }
  for (Common& common : common_) {
    start_presence(common);  // Right after the last bucket: one wait for both.
  }
  for (const auto& bucket : model_.buckets()) {
    bucket->gradients().advance(/*wait=*/true);
  }
  std::vector<bool> on_any_rank(present_.size());
  std::vector<Common*> differing;
  bool any_report = false;
  bool any_adds_to_stale = false;
  for (Common& common : common_) {
    const at::Tensor present = common.presence->wait();
    common.presence.reset();
    const auto* values = present.const_data_ptr<uint8_t>();
    for (size_t i = 0; i < common.parameters.size(); ++i) {
      on_any_rank[common.parameters[i]] = values[i] != 0;
      any_adds_to_stale = any_adds_to_stale || values[i] == kAddsToStale;
    }
    const DigestFlags::Result compared = DigestFlags::read(
        present.narrow(0, static_cast<int64_t>(common.parameters.size()), DigestFlags::kCount));
    any_report = any_report || compared.any_report;
    if (compared.differ) {
      differing.push_back(&common);
    }
  }
  for (Common* common : differing) {
    refuse_different_facts(common->group, facts(*common), "backward");
  }
  if (any_adds_to_stale) {
    refuse_stale();
  }
  for (size_t bucket = 0; bucket < model_.buckets().size(); ++bucket) {
    std::vector<bool> by_entry;
    for (const size_t parameter : model_.members()[bucket]) {
      by_entry.push_back(on_any_rank[parameter]);
      had_gradient_[parameter] = had_gradient_[parameter] || on_any_rank[parameter];
    }
    model_.buckets()[bucket]->gradients().finish(by_entry);
  }
  for (size_t parameter = 0; parameter < had_gradient_.size(); ++parameter) {
    if (had_gradient_[parameter]) {
      placeholders_.put(parameter);
    }
  }
  flat::broadcast_coalesced(common_[0].group, buffers_);
  stale_check_.clear();
  if (any_report && facts_.exchange_reports) {
    facts_.exchange_reports();
  }
}

uint64_t ShardReducer::digest(const Common& common) const {
  const bool lists = !common.is_subgroup && facts_.digest;
  uint64_t digest = mix(lists ? facts_.digest() : 0, static_cast<uint64_t>(common.drops));
  for (const size_t parameter : common.parameters) {
    digest = mix(digest, model_.parameters()[parameter].tensor.requires_grad() ? 1 : 0);
  }
  return digest;
}

std::vector<RankFact> ShardReducer::facts(const Common& common) const {
  std::vector<RankFact> all;
  if (!common.is_subgroup && facts_.list) {
    all = facts_.list();
  }
  all.push_back(
      {"the number of gradients that the program has dropped",
       fmt::format("{}", common.drops),
       "call zero_grad() at the same place on every rank"});
  for (const size_t parameter : common.parameters) {
    all.push_back(trained_or_frozen(model_.parameters()[parameter]));
  }
  return all;
}

bool ShardReducer::has_gradients() const {
  return std::find(had_gradient_.begin(), had_gradient_.end(), true) != had_gradient_.end();
}

void ShardReducer::refuse_stale() {
  for (const auto& bucket : model_.buckets()) {
    bucket->gradients().abandon(/*wait=*/true);
  }
  throw ConfigError(
      "zero",
      "backward would add to gradients that step() has already used; call zero_grad() of the "
      "prepared optimizer after each step()");
}

void ShardReducer::abandon_buckets(bool wait) {
  speculative_.discard_all();
  for (const auto& bucket : model_.buckets()) {
    bucket->gradients().abandon(wait);
  }
  if (ParamCoordinator* coordinator = model_.coordinator(); coordinator != nullptr && wait) {
    coordinator->abandon();
  }
}

void ShardReducer::finish_local_backward() {
  if (ParamCoordinator* coordinator = model_.coordinator()) {
    coordinator->wait_for_all();  // Other ranks may still need parameters from this one.
  }
}

void ShardReducer::drop_gradients() {
  speculative_.discard_all();
  stale_check_.clear();
  held_.assign(held_.size(), at::Tensor());
  for (size_t parameter = 0; parameter < held_.size(); ++parameter) {
    placeholders_.remove(parameter);
    is_split_[parameter] = false;
    model_.parameters()[parameter].tensor.mutable_grad().reset();
  }
  for (const auto& bucket : model_.buckets()) {
    for (const ShardSlice& shard_slice : bucket->shard_slices()) {
      shard_slice.values.mutable_grad().reset();
    }
  }
  had_gradient_.assign(had_gradient_.size(), false);
}

std::vector<at::Tensor> ShardReducer::held_gradients() const {
  std::vector<at::Tensor> all;
  std::copy_if(held_.begin(), held_.end(), std::back_inserter(all), [](const at::Tensor& held) {
    return held.defined();
  });
  return all;
}

std::vector<std::string> ShardReducer::without_gradient() const {
  std::vector<std::string> names;
  for (size_t i = 0; i < had_gradient_.size(); ++i) {
    if (!had_gradient_[i]) {
      names.push_back(parameter_name(i));
    }
  }
  return names;
}

}  // namespace lockstep::zero
