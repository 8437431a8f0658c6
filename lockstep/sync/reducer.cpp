// SPDX-License-Identifier: Apache-2.0
#include "lockstep/sync/reducer.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/flat/coalesce.h"
#include "lockstep/flat/layout.h"
#include "lockstep/sync/join_coordinator.h"
#include "lockstep/sync/unfrozen.h"

namespace lockstep {
namespace {

bool aliases(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && a.const_data_ptr() == b.const_data_ptr() && a.strides() == b.strides();
}

}  // namespace

NamedTensors trainable(const NamedTensors& parameters) {
  NamedTensors unique;
  std::unordered_set<at::TensorImpl*> seen;
  for (const NamedTensor& item : parameters) {
    if (item.tensor.requires_grad() && item.tensor.numel() > 0 &&
        seen.insert(item.tensor.unsafeGetTensorImpl()).second) {
      unique.push_back(item);
    }
  }
  return unique;
}

Reducer::Reducer(
    const NamedTensors& parameters,
    std::vector<at::Tensor> buffers,
    Group group,
    const DataParallelOptions& options,
    const flat::CommDtypes& narrow)
    : group_(std::move(group)),
      parameters_(trainable(parameters)),
      untrained_(frozen_among(parameters)) {
  if (group_.size() == 1) {
    return;
  }
  buffers_ = std::move(buffers);
  const std::vector<at::Tensor> tensors = tensors_of(parameters_);
  places_.resize(tensors.size());
  for (flat::BucketPlan& plan :
       flat::plan_buckets(tensors, options.cap_bytes, options.first_cap_bytes, narrow)) {
    for (size_t entry = 0; entry < plan.entries.size(); ++entry) {
      places_[static_cast<size_t>(plan.entries[entry].parameter)] = {buckets_.size(), entry};
    }
    buckets_.emplace_back(std::move(plan), tensors, group_);
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    index_of_[tensors[i].unsafeGetTensorImpl()] = i;
  }
  has_gradient_.assign(tensors.size(), false);
  averaged_.assign(tensors.size(), false);
  versions_.assign(tensors.size(), 0);
  reset_backward();
  hook_ = make_comm_hook(options.comm_hook, group_, buckets_, parameters_);
}

void Reducer::watch() {
  if (group_.size() == 1) {
    return;
  }
  // Hooks must not keep this alive: it owns them.
  const std::weak_ptr<Reducer> weak = weak_from_this();
  hooks_ = std::make_unique<BackwardHooks>(tensors_of(parameters_), [weak](size_t index) {
    if (const auto self = weak.lock()) {
      self->gradient_arrived(index);
    }
  });
}

void Reducer::set_join_coordinator(
    std::shared_ptr<JoinCoordinator> join_coordinator, size_t model, bool defer) {
  join_coordinator_ = std::move(join_coordinator);
  model_ = model;
  defer_ = defer;
}

void Reducer::reset_backward() {
  expected_ = false;
  in_backward_ = false;
  announced_ = false;
  next_bucket_ = 0;
  arrived_.assign(parameters_.size(), false);
  missing_.clear();
  for (const flat::GradBucket& bucket : buckets_) {
    missing_.push_back(bucket.entries().size());
  }
}

/// Makes `grad` the view into the bucket, whatever autograd or the user's zero_grad has put there.
/// Returns whether it was another one.
bool Reducer::adopt_gradient(size_t index) {
  at::Tensor& gradient = parameters_[index].tensor.mutable_grad();
  if (aliases(gradient, view(index))) {
    return false;
  }
  if (gradient.layout() != at::kStrided) {
    throw ConfigError(
        "data_parallel",
        fmt::format(
            "{} got a sparse gradient; build its layer with sparse=false",
            parameters_[index].name));
  }
  view(index).copy_(gradient);
  gradient = view(index);
  return true;
}

void Reducer::gradient_arrived(size_t index) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const c10::AutoGradMode no_grad(false);
  // A custom function may hand on no gradient at all.
  if (parameters_[index].tensor.grad().defined()) {
    // Autograd's own addition counts one; more is a zeroing in place, by torch's optimizers say.
    if (adopt_gradient(index) || view(index)._version() != ++versions_[index]) {
      averaged_[index] = false;
    }
    has_gradient_[index] = true;
  }
  if (!sync()) {
    if (const int id = BackwardHooks::current_backward(); local_id_ != id) {
      local_id_ = id;
      BackwardHooks::at_end_of_backward([self = shared_from_this()] {
        const std::lock_guard<std::mutex> end_lock(self->mutex_);
        self->drop_untouched();
      });
    }
    return;
  }
  if (in_backward_ && backward_id_ != BackwardHooks::current_backward()) {
    throw Error(
        "data_parallel",
        "the backward before this one did not end; an exception in it must end the program, or "
        "reach abandon_backward()");
  }
  if (!in_backward_) {
    refuse_unfrozen(untrained_, "data_parallel");
    in_backward_ = true;
    backward_id_ = BackwardHooks::current_backward();
    BackwardHooks::at_end_of_backward([self = shared_from_this()] { self->finish(); });
  }
  if (arrived_[index]) {
    if (places_[index].bucket < next_bucket_) {
      throw ConfigError(
          "data_parallel",
          fmt::format(
              "{} got a second gradient within one backward, after the first was sent; a backward "
              "inside a backward is only possible with set_sync(false)",
              parameters_[index].name));
    }
    return;
  }
  arrived_[index] = true;
  --missing_[places_[index].bucket];
  while (!defer_ && next_bucket_ < buckets_.size() && missing_[next_bucket_] == 0) {
    start(next_bucket_++);
  }
}

bool Reducer::holds_average(size_t index) const {
  return averaged_[index] && aliases(parameters_[index].tensor.grad(), view(index));
}

bool Reducer::adds_to_average() const {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (holds_average(i) && static_cast<int64_t>(view(i)._version()) == versions_[i]) {
      return true;
    }
  }
  return false;
}

void Reducer::announce() {
  if (!join_coordinator_ || announced_) {
    return;
  }
  announced_ = true;
  try {
    join_coordinator_->announce(model_, adds_to_average());
  } catch (...) {
    reset_backward();  // Nothing of it is under way yet.
    throw;
  }
}

void Reducer::start(size_t bucket_index) {
  announce();
  flat::GradBucket& bucket = buckets_[bucket_index];
  std::vector<bool> present;
  for (size_t entry = 0; entry < bucket.entries().size(); ++entry) {
    const auto index = static_cast<size_t>(bucket.entries()[entry].parameter);
    if (!parameters_[index].tensor.grad().defined()) {
      has_gradient_[index] = false;
      bucket.view(entry).zero_();
    } else if (adopt_gradient(index)) {  // The user put a gradient of their own there.
      has_gradient_[index] = true;
    }
    present.push_back(has_gradient_[index]);
  }
  bucket.set_flags(present);
  hook_->start(bucket_index);
}

void Reducer::begin() {
  if (group_.size() > 1) {
    refuse_unfrozen(untrained_, "data_parallel");
  }
  expected_ = sync() && !(buckets_.empty() && buffers_.empty());
}

void Reducer::finish() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (in_backward_ || expected_) {
    finish_locked();
  } else if (!sync()) {
    drop_untouched();
  }
}

/// After a backward that only accumulated: as `take_average`, by what this rank has.
void Reducer::drop_untouched() {
  for (size_t i = 0; i < has_gradient_.size(); ++i) {
    at::Tensor& gradient = parameters_[i].tensor.mutable_grad();
    if (!has_gradient_[i] && aliases(gradient, view(i))) {
      gradient.reset();
    }
  }
}

void Reducer::finish_locked() {
  const c10::AutoGradMode no_grad(false);
  try {
    announce();
    while (next_bucket_ < buckets_.size()) {
      start(next_bucket_++);
    }
    hook_->finish();
    int buffer_root = 0;
    if (join_coordinator_) {
      buffer_root = join_coordinator_->wait().alive.front();
      if (const double factor = join_coordinator_->factor(); factor != 1) {
        for (const flat::GradBucket& bucket : buckets_) {
          bucket.gradients().mul_(factor);
        }
      }
    }
    for (const flat::GradBucket& bucket : buckets_) {
      take_average(bucket);
    }
    flat::broadcast_coalesced(group_, buffers_, buffer_root);
  } catch (...) {
    hook_->abandon(/*wait=*/false);
    reset_backward();
    throw;
  }
  reset_backward();
}

void Reducer::average_without_data(bool keep) {
  const std::lock_guard<std::mutex> lock(mutex_);
  // What was accumulated here and never averaged is still to be sent; an average is spent.
  bool spent = false;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    spent = spent || holds_average(i);
  }
  if (!keep && spent) {
    for (NamedTensor& item : parameters_) {
      item.tensor.mutable_grad().reset();
    }
  }
  expected_ = true;
  announced_ = true;  // By those who have data.
  finish_locked();
}

void Reducer::abandon() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (hook_) {
    hook_->abandon(/*wait=*/true);
  }
  reset_backward();
}

void Reducer::take_average(const flat::GradBucket& bucket) {
  const std::vector<bool> anywhere = bucket.flags();
  for (size_t entry = 0; entry < anywhere.size(); ++entry) {
    const auto index = static_cast<size_t>(bucket.entries()[entry].parameter);
    has_gradient_[index] = anywhere[entry];
    averaged_[index] = anywhere[entry];
    versions_[index] = bucket.view(entry)._version();
    parameters_[index].tensor.mutable_grad() = anywhere[entry] ? bucket.view(entry) : at::Tensor();
  }
}

}  // namespace lockstep
