// SPDX-License-Identifier: Apache-2.0
#include "lockstep/sync/data_parallel.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/flat/coalesce.h"
#include "lockstep/flat/layout.h"
#include "lockstep/sync/agreement.h"
#include "lockstep/sync/backward_hooks.h"

namespace lockstep {
namespace {

bool aliases(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && a.const_data_ptr() == b.const_data_ptr() && a.strides() == b.strides();
}

/// Parameters that take part: each once, though it may have two names, and none that is frozen or
/// empty.
NamedTensors trainable(const NamedTensors& parameters) {
  NamedTensors unique;
  for (const NamedTensor& item : parameters) {
    const bool seen = std::any_of(unique.begin(), unique.end(), [&](const NamedTensor& other) {
      return other.tensor.is_same(item.tensor);
    });
    if (item.tensor.requires_grad() && item.tensor.numel() > 0 && !seen) {
      unique.push_back(item);
    }
  }
  return unique;
}

std::vector<at::Tensor> tensors_of(const NamedTensors& items) {
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& item : items) {
    tensors.push_back(item.tensor);
  }
  return tensors;
}

}  // namespace

struct DataParallel::State {
  struct Place {
    size_t bucket = 0;
    size_t slot = 0;
  };

  Group group;
  NamedTensors parameters;
  std::vector<at::Tensor> buffers;
  std::vector<flat::GradBucket> buckets;
  std::vector<Place> places;  ///< [parameter]
  std::unordered_map<at::TensorImpl*, size_t> index_of;
  std::unique_ptr<BackwardHooks> hooks;

  std::mutex mutex;  // CUDA gradients arrive on autograd's own threads.
  bool sync = true;
  bool expected = false;           ///< A synchronising backward was announced and is not finished.
  bool in_backward = false;        ///< A synchronising backward has begun and is not finished.
  int backward_id = -1;            ///< Which one, as autograd numbers them.
  std::vector<bool> has_gradient;  ///< [parameter] on this rank, since it was last zeroed
  std::vector<bool> arrived;       ///< [parameter] in this backward
  std::vector<size_t> missing;     ///< [bucket] parameters that have not arrived in this backward
  size_t next_bucket = 0;          ///< First bucket not yet on its way.
  std::vector<Pending> pending;

  const at::Tensor& view(size_t parameter) const {
    return buckets[places[parameter].bucket].view(places[parameter].slot);
  }

  void reset_backward() {
    expected = false;
    in_backward = false;
    next_bucket = 0;
    pending.clear();
    arrived.assign(parameters.size(), false);
    missing.clear();
    for (const flat::GradBucket& bucket : buckets) {
      missing.push_back(bucket.slots().size());
    }
  }

  /// Makes `grad` the view into the bucket, whatever autograd or the user's zero_grad has put
  /// there.
  void adopt_gradient(size_t index) {
    at::Tensor& gradient = parameters[index].tensor.mutable_grad();
    if (aliases(gradient, view(index))) {
      return;
    }
    if (gradient.layout() != at::kStrided) {
      throw ConfigError(
          "data_parallel",
          fmt::format(
              "{} got a sparse gradient; build its layer with sparse=false",
              parameters[index].name));
    }
    view(index).copy_(gradient);
    gradient = view(index);
  }

  void gradient_arrived(const std::shared_ptr<State>& self, size_t index) {
    const std::lock_guard<std::mutex> lock(mutex);
    const c10::AutoGradMode no_grad(false);
    // A custom function may hand on no gradient at all.
    if (parameters[index].tensor.grad().defined()) {
      adopt_gradient(index);
      has_gradient[index] = true;
    }
    if (!sync) {
      return;
    }
    if (in_backward && backward_id != BackwardHooks::current_backward()) {
      throw Error(
          "data_parallel",
          "the backward before this one did not end; an exception in it must end the program, or "
          "reach "
          "abandon_backward()");
    }
    if (!in_backward) {
      in_backward = true;
      backward_id = BackwardHooks::current_backward();
      BackwardHooks::at_end_of_backward([self] { self->finish(); });
    }
    if (arrived[index]) {
      if (places[index].bucket < next_bucket) {
        throw ConfigError(
            "data_parallel",
            fmt::format(
                "{} got a second gradient within one backward, after the first was sent; a "
                "backward "
                "inside a backward is only possible with set_sync(false)",
                parameters[index].name));
      }
      return;
    }
    arrived[index] = true;
    --missing[places[index].bucket];
    while (next_bucket < buckets.size() && missing[next_bucket] == 0) {
      start(next_bucket++);
    }
  }

  void start(size_t bucket_index) {
    flat::GradBucket& bucket = buckets[bucket_index];
    std::vector<bool> present;
    for (size_t slot = 0; slot < bucket.slots().size(); ++slot) {
      const auto index = static_cast<size_t>(bucket.slots()[slot].parameter);
      const at::Tensor& gradient = parameters[index].tensor.grad();
      if (!gradient.defined()) {
        has_gradient[index] = false;
        bucket.view(slot).zero_();
      } else if (!aliases(gradient, bucket.view(slot))) {
        adopt_gradient(index);  // The user put a gradient of their own there.
        has_gradient[index] = true;
      }
      present.push_back(has_gradient[index]);
    }
    bucket.set_flags(present);
    pending.push_back(group.all_reduce(bucket.buffer(), ReduceOp::kAvg));
  }

  void finish() {
    const std::lock_guard<std::mutex> lock(mutex);
    if (!in_backward && !expected) {
      return;
    }
    const c10::AutoGradMode no_grad(false);
    try {
      while (next_bucket < buckets.size()) {
        start(next_bucket++);
      }
      for (Pending& reduction : pending) {
        reduction.wait();
      }
      for (const flat::GradBucket& bucket : buckets) {
        take_average(bucket);
      }
      flat::broadcast_coalesced(group, buffers);
    } catch (...) {
      reset_backward();
      throw;
    }
    reset_backward();
  }

  void abandon() {
    const std::lock_guard<std::mutex> lock(mutex);
    for (Pending& reduction : pending) {
      try {
        reduction.wait();  // It may still write into a bucket.
      } catch (const std::exception&) {
        // The caller is about to report what came first.
      }
    }
    reset_backward();
  }

  void take_average(const flat::GradBucket& bucket) {
    const std::vector<bool> anywhere = bucket.flags();
    for (size_t slot = 0; slot < anywhere.size(); ++slot) {
      const auto index = static_cast<size_t>(bucket.slots()[slot].parameter);
      has_gradient[index] = anywhere[slot];
      parameters[index].tensor.mutable_grad() = anywhere[slot] ? bucket.view(slot) : at::Tensor();
    }
  }
};

DataParallel::DataParallel(
    const NamedTensors& parameters,
    const NamedTensors& buffers,
    Group group,
    DataParallelOptions options)
    : state_(std::make_shared<State>()) {
  if (options.cap_bytes < 1 || options.first_cap_bytes < 1) {
    throw ConfigError(
        "data_parallel",
        fmt::format(
            "a bucket needs at least one byte; got cap_bytes={}, first_cap_bytes={}",
            options.cap_bytes,
            options.first_cap_bytes));
  }
  State& state = *state_;
  state.group = std::move(group);
  if (state.group.size() == 1) {
    return;
  }
  check_same_on_all_ranks(state.group, parameters, "parameter");
  check_same_on_all_ranks(state.group, buffers, "buffer");
  flat::broadcast_coalesced(state.group, tensors_of(parameters));
  flat::broadcast_coalesced(state.group, tensors_of(buffers));
  if (options.broadcast_buffers) {
    state.buffers = tensors_of(buffers);
  }
  state.parameters = trainable(parameters);
  const std::vector<at::Tensor> tensors = tensors_of(state.parameters);
  state.places.resize(tensors.size());
  for (flat::BucketPlan& plan :
       flat::plan_buckets(tensors, options.cap_bytes, options.first_cap_bytes)) {
    for (size_t slot = 0; slot < plan.slots.size(); ++slot) {
      state.places[static_cast<size_t>(plan.slots[slot].parameter)] = {state.buckets.size(), slot};
    }
    state.buckets.emplace_back(std::move(plan), tensors);
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    state.index_of[tensors[i].unsafeGetTensorImpl()] = i;
  }
  state.has_gradient.assign(tensors.size(), false);
  state.reset_backward();
  // Hooks must not keep the state alive: it owns them.
  const std::weak_ptr<State> weak = state_;
  state.hooks = std::make_unique<BackwardHooks>(tensors, [weak](size_t index) {
    if (const auto self = weak.lock()) {
      self->gradient_arrived(self, index);
    }
  });
}

DataParallel::~DataParallel() = default;

void DataParallel::begin_backward() {
  state_->expected = state_->sync && !(state_->buckets.empty() && state_->buffers.empty());
}

void DataParallel::abandon_backward() noexcept {
  state_->abandon();
}

void DataParallel::finish_backward() {
  state_->finish();
}

void DataParallel::set_sync(bool sync) {
  state_->sync = sync;
}

bool DataParallel::sync() const {
  return state_->sync;
}

std::vector<at::Tensor> DataParallel::zero_grad(const std::vector<at::Tensor>& parameters) {
  State& state = *state_;
  std::vector<at::Tensor> foreign;
  std::vector<size_t> ours;
  for (const at::Tensor& parameter : parameters) {
    const auto found = state.index_of.find(parameter.unsafeGetTensorImpl());
    if (found == state.index_of.end()) {
      foreign.push_back(parameter);
    } else {
      ours.push_back(found->second);
    }
  }
  const bool all = ours.size() == state.parameters.size();
  if (all) {
    for (flat::GradBucket& bucket : state.buckets) {
      bucket.zero_gradients();
    }
  }
  for (size_t index : ours) {
    state.has_gradient[index] = false;
    at::Tensor& gradient = state.parameters[index].tensor.mutable_grad();
    if (!all) {
      state.view(index).zero_();
    }
    if (gradient.defined() && !aliases(gradient, state.view(index))) {
      gradient = state.view(index);
    }
  }
  return foreign;
}

size_t DataParallel::bucket_count() const {
  return state_->buckets.size();
}

}  // namespace lockstep
