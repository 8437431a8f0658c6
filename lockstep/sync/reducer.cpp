// SPDX-License-Identifier: Apache-2.0
#include "lockstep/sync/reducer.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <ATen/ops/empty.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/fail_together.h"
#include "lockstep/flat/bucket_plan.h"
#include "lockstep/flat/coalesce.h"
#include "lockstep/flat/parameters.h"
#include "lockstep/sync/join_coordinator.h"

namespace lockstep {
namespace {

bool aliases(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && a.layout() == at::kStrided && a.const_data_ptr() == b.const_data_ptr() &&
         a.strides() == b.strides();
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
  view.copy_(gradient);
  gradient = view;
  return true;
}

bool Reducer::has_sparse_gradient(size_t parameter) const {
  const at::Tensor& gradient = parameters_[parameter].tensor.grad();
  return gradient.defined() && gradient.layout() == at::kSparse;
}

bool Reducer::on_gradient(size_t parameter, bool averages) {
  Gradient& gradient = gradients_[parameter];
  gradient.is_sparse = has_sparse_gradient(parameter);
  if (gradient.is_sparse) {
    gradient.exists = gradient.is_average = false;
    // A custom function may return no gradient.
  } else if (parameters_[parameter].tensor.grad().defined()) {
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
  added_to_average_ = adds_to_average();
  if (join_coordinator_ && !std::exchange(is_announced_, false)) {
    join_coordinator_->announce(model_, added_to_average_);
  }
  digest_ = digest();
}

void Reducer::start_bucket(size_t index) {
  flat::GradBucket& bucket = buckets_[index];
  std::vector<bool> present;
  for (size_t entry = 0; entry < bucket.entries().size(); ++entry) {
    const size_t parameter = parameter_of(bucket, entry);
    Gradient& gradient = gradients_[parameter];
    gradient.is_sparse = has_sparse_gradient(parameter);
    if (gradient.is_sparse) {
      sparse_.take(parameter);
    }
    if (!parameters_[parameter].tensor.grad().defined()) {
      gradient.exists = false;
      bucket.view(entry).zero_();
    } else if (adopt_gradient(parameter)) {  // The user put a gradient of their own there.
      gradient.exists = true;
    }
    present.push_back(gradient.exists);
  }
  bucket.set_flags(present);
  if (index + 1 == buckets_.size()) {
    send_flags();
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
  const bool any_report = compare_facts();
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
  if (any_report) {
    average_sparse_gradients();
    exchange_reports();
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

/// Sends the DigestFlags with the last bucket, or, for a device, in a message of their own: reading
/// them must not wait for the device.
void Reducer::send_flags() {
  // Sparse gradients need messages that the other ranks do not expect, as reports do.
  const bool has_report = sparse_.any() || (facts_.has_report && facts_.has_report());
  const at::Tensor& with_bucket = buckets_.back().more_flags();
  if (with_bucket.is_cpu()) {
    DigestFlags::write(with_bucket, digest_, has_report);
    return;
  }
  const at::Tensor flags = at::empty({DigestFlags::kCount}, at::kFloat);
  DigestFlags::write(flags, digest_, has_report);
  device_flags_ = group_.all_reduce(flags, ReduceOp::kMax);
}

bool Reducer::compare_facts() {
  if (buckets_.empty()) {
    return false;
  }
  const at::Tensor flags =
      device_flags_ ? std::exchange(device_flags_, {})->wait() : buckets_.back().more_flags();
  const DigestFlags::Result result = DigestFlags::read(flags);
  if (result.differ) {
    refuse_different_facts(group_, facts(), "backward");
  }
  return result.any_report;
}

void Reducer::exchange_reports() {
  if (!facts_.exchange_reports) {
    return;
  }
  if (any_rank(group_, facts_.has_report && facts_.has_report())) {
    facts_.exchange_reports();
  }
}

void Reducer::average_sparse_gradients() {
  if (join_coordinator_ && sparse_.any()) {
    throw ConfigError(
        "data_parallel",
        "sparse gradients cannot be averaged with uneven inputs; build the Embedding with "
        "sparse=false, or use even_batches");
  }
  std::vector<bool> has_dense;
  for (const Gradient& gradient : gradients_) {
    has_dense.push_back(gradient.exists);
  }
  const std::vector<bool> is_sparse = sparse_.average(group_, has_dense);
  for (size_t i = 0; i < is_sparse.size(); ++i) {
    gradients_[i].is_sparse = is_sparse[i];
  }
}

bool Reducer::has_gradients() const {
  return std::any_of(gradients_.begin(), gradients_.end(), [](const Gradient& gradient) {
    return gradient.exists || gradient.is_sparse;
  });
}

void Reducer::abandon_buckets(bool wait) {
  device_flags_.reset();
  sparse_.clear();
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
