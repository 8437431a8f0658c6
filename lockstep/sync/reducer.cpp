// SPDX-License-Identifier: Apache-2.0
#include "lockstep/sync/reducer.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <ATen/ops/empty.h>

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

size_t parameter_of(const flat::GradBucket& bucket, size_t entry) {
  return static_cast<size_t>(bucket.entries()[entry].parameter);
}

}  // namespace

Reducer::Reducer(
    const NamedTensors& parameters,
    std::vector<at::Tensor> buffers,
    Group group,
    const DataParallelOptions& options,
    const flat::CommDtypes& comm_dtypes)
    : group_(std::move(group)),
      parameters_(trainable(parameters)),
      frozen_(frozen_among(parameters)),
      reduction_("data_parallel", GradientReduction::Overlap::kRefused, *this) {
  if (group_.size() == 1) {
    return;
  }
  buffers_ = std::move(buffers);
  const std::vector<at::Tensor> tensors = tensors_of(parameters_);
  gradients_.resize(tensors.size());
  std::vector<std::vector<size_t>> members;
  std::vector<flat::BucketPlan> plans =
      flat::plan_buckets(tensors, options.cap_bytes, options.first_cap_bytes, comm_dtypes);
  for (flat::BucketPlan& plan : plans) {
    const bool is_last = &plan == &plans.back();
    buckets_.emplace_back(
        std::move(plan), tensors, group_, is_last ? DigestFlags::kCount : int64_t{0});
    members.emplace_back();
    for (size_t entry = 0; entry < buckets_.back().entries().size(); ++entry) {
      members.back().push_back(parameter_of(buckets_.back(), entry));
      gradients_[members.back().back()].view = buckets_.back().view(entry);
    }
  }
  reduction_.set_layout(tensors.size(), members);
  hook_ = make_comm_hook(options.comm_hook, group_, buckets_, parameters_);
}

void Reducer::watch() {
  if (group_.size() > 1) {
    reduction_.watch(
        tensors_of(parameters_),
        std::shared_ptr<GradientReduction>(shared_from_this(), &reduction_));
  }
}

void Reducer::set_sync(bool sync) {
  sync_ = sync;
  reduction_.set_sync(sync_ && !local_);
}

void Reducer::set_local(bool local) {
  local_ = local;
  reduction_.set_sync(sync_ && !local_);
}

void Reducer::set_join_coordinator(
    std::shared_ptr<JoinCoordinator> join_coordinator, size_t model, bool defer) {
  join_coordinator_ = std::move(join_coordinator);
  model_ = model;
  is_announced_ = false;
  reduction_.set_deferred(defer);
}

void Reducer::begin() {
  if (group_.size() > 1) {
    refuse_unfrozen(frozen_, "data_parallel");
  }
  reduction_.begin(/*has_work=*/!buckets_.empty() || !buffers_.empty());
}

/// Copies the gradient to the bucket and makes `grad` the view into it. Returns whether `grad` was
/// another tensor before.
bool Reducer::adopt_gradient(size_t parameter) {
  at::Tensor& gradient = parameters_[parameter].tensor.mutable_grad();
  const at::Tensor& view = gradients_[parameter].view;
  if (aliases(gradient, view)) {
    return false;
  }
  if (gradient.layout() != at::kStrided) {
    throw ConfigError(
        "data_parallel",
        fmt::format(
            "{} got a sparse gradient; build its layer with sparse=false",
            parameters_[parameter].name));
  }
  view.copy_(gradient);
  gradient = view;
  return true;
}

bool Reducer::on_gradient(size_t parameter, bool averages) {
  Gradient& gradient = gradients_[parameter];
  // A custom function may return no gradient.
  if (parameters_[parameter].tensor.grad().defined()) {
    // Autograd's own addition increments the version once. More increments are a zeroing in place,
    // for instance by torch's optimizers.
    if (adopt_gradient(parameter) || gradient.view._version() != ++gradient.version) {
      gradient.is_average = false;
    }
    gradient.exists = true;
  }
  if (const int id = BackwardHooks::current_backward(); !averages && local_backward_ != id) {
    local_backward_ = id;
    BackwardHooks::at_end_of_backward([self = shared_from_this()] {
      const auto lock = self->reduction_.lock();
      self->drop_missing_gradients();
    });
  }
  return true;
}

void Reducer::begin_backward() {
  refuse_unfrozen(frozen_, "data_parallel");
}

bool Reducer::holds_average(size_t parameter) const {
  const Gradient& gradient = gradients_[parameter];
  return gradient.is_average && aliases(parameters_[parameter].tensor.grad(), gradient.view);
}

bool Reducer::adds_to_average() const {
  for (size_t i = 0; i < gradients_.size(); ++i) {
    if (holds_average(i) && gradients_[i].view._version() == gradients_[i].version) {
      return true;
    }
  }
  return false;
}

void Reducer::begin_reduction() {
  if (join_coordinator_ && !std::exchange(is_announced_, false)) {
    join_coordinator_->announce(model_, adds_to_average());
  }
  added_to_average_ = adds_to_average();
  digest_ = digest();
  if (!buckets_.empty() && !buckets_.back().buffer().is_cpu()) {
    // Reading flags of a device would wait for it, so these stay on the CPU.
    const at::Tensor flags = at::empty({DigestFlags::kCount}, at::kFloat);
    DigestFlags::write(flags, digest_, facts_.has_report && facts_.has_report());
    device_flags_ = group_.all_reduce(flags, ReduceOp::kMax);
  }
}

void Reducer::start_bucket(size_t index) {
  flat::GradBucket& bucket = buckets_[index];
  std::vector<bool> present;
  for (size_t entry = 0; entry < bucket.entries().size(); ++entry) {
    const size_t parameter = parameter_of(bucket, entry);
    Gradient& gradient = gradients_[parameter];
    if (!parameters_[parameter].tensor.grad().defined()) {
      gradient.exists = false;
      bucket.view(entry).zero_();
    } else if (adopt_gradient(parameter)) {  // The user put a gradient of their own there.
      gradient.exists = true;
    }
    present.push_back(gradient.exists);
  }
  bucket.set_flags(present);
  if (index + 1 == buckets_.size() && !device_flags_) {
    DigestFlags::write(bucket.more_flags(), digest_, facts_.has_report && facts_.has_report());
  }
  hook_->start(index);
}

/// Undefines `grad` of parameters without a gradient on this rank, after a backward that only
/// accumulated.
void Reducer::drop_missing_gradients() {
  for (size_t i = 0; i < gradients_.size(); ++i) {
    at::Tensor& gradient = parameters_[i].tensor.mutable_grad();
    if (!gradients_[i].exists && aliases(gradient, gradients_[i].view)) {
      gradient.reset();
    }
  }
}

void Reducer::finish_buckets() {
  hook_->finish();
  compare_facts();
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
}

/// Returns a digest of what must be equal on all ranks. While ranks join with uneven inputs, some
/// have no loop, so nothing is compared.
uint64_t Reducer::digest() const {
  if (join_coordinator_) {
    return 0;
  }
  uint64_t digest = facts_.digest ? facts_.digest() : 0;
  digest = mix(digest, added_to_average_ ? 1 : 0);
  for (const NamedTensor& item : parameters_) {
    digest = mix(digest, item.tensor.requires_grad() ? 1 : 0);
  }
  return digest;
}

std::vector<RankFact> Reducer::facts() const {
  std::vector<RankFact> all = facts_.list ? facts_.list() : std::vector<RankFact>();
  all.push_back(
      {"the treatment of the last gradients",
       added_to_average_ ? "added to them" : "dropped them",
       "call zero_grad() at the same place on every rank"});
  for (const NamedTensor& item : parameters_) {
    all.push_back(trained_or_frozen(item));
  }
  return all;
}

void Reducer::compare_facts() {
  if (buckets_.empty()) {
    return;
  }
  const at::Tensor flags =
      device_flags_ ? std::exchange(device_flags_, {})->wait() : buckets_.back().more_flags();
  if (DigestFlags::differ(flags)) {
    refuse_different_facts(group_, facts(), "backward");
  }
  if (DigestFlags::any_report(flags) && facts_.exchange_reports) {
    facts_.exchange_reports();
  }
}

bool Reducer::has_gradients() const {
  return std::any_of(gradients_.begin(), gradients_.end(), [](const Gradient& gradient) {
    return gradient.exists;
  });
}

void Reducer::abandon_buckets(bool wait) {
  device_flags_.reset();
  if (hook_) {
    hook_->abandon(wait);
  }
}

void Reducer::average_without_data(bool keep) {
  {
    const auto lock = reduction_.lock();
    // Gradients that were accumulated here and never averaged are still to be sent; averages are
    // not.
    bool has_average = false;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      has_average = has_average || holds_average(i);
    }
    if (!keep && has_average) {
      for (NamedTensor& item : parameters_) {
        item.tensor.mutable_grad().reset();
      }
    }
    is_announced_ = true;
  }
  reduction_.reduce_without_backward();
}

void Reducer::take_average(const flat::GradBucket& bucket) {
  const std::vector<bool> on_any_rank = bucket.flags();
  for (size_t entry = 0; entry < on_any_rank.size(); ++entry) {
    const size_t parameter = parameter_of(bucket, entry);
    Gradient& gradient = gradients_[parameter];
    gradient.exists = on_any_rank[entry];
    gradient.is_average = on_any_rank[entry];
    gradient.version = gradient.view._version();
    parameters_[parameter].tensor.mutable_grad() =
        on_any_rank[entry] ? gradient.view : at::Tensor();
  }
}

}  // namespace lockstep
