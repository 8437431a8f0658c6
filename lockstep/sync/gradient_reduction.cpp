// SPDX-License-Identifier: Apache-2.0
#include "lockstep/sync/gradient_reduction.h"

#include <functional>
#include <utility>

#include <fmt/format.h>

#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"

namespace lockstep {

void GradientReduction::set_layout(
    size_t parameter_count, const std::vector<std::vector<size_t>>& members) {
  bucket_of_.resize(parameter_count);
  for (size_t bucket = 0; bucket < members.size(); ++bucket) {
    sizes_.push_back(members[bucket].size());
    for (const size_t parameter : members[bucket]) {
      bucket_of_[parameter] = bucket;
    }
  }
  reset();
}

void GradientReduction::watch(
    const std::vector<at::Tensor>& parameters, const std::shared_ptr<GradientReduction>& self) {
  self_ = self;
  std::function<void(size_t)> before;
  if (buckets_.wants_before_gradient()) {
    before = [weak = self_](size_t parameter) {
      if (const auto reduction = weak.lock()) {
        const std::lock_guard<std::mutex> lock(reduction->mutex_);
        reduction->buckets_.before_gradient(parameter);
      }
    };
  }
  hooks_ = std::make_unique<BackwardHooks>(
      parameters,
      [weak = self_](size_t parameter) {
        if (const auto reduction = weak.lock()) {
          reduction->gradient_arrived(parameter, BackwardHooks::current_backward());
        }
      },
      std::move(before));
}

void GradientReduction::begin(bool has_work) {
  backward_.begun = true;
  backward_.must_average = sync_ && has_work;
}

void GradientReduction::gradient_arrived(size_t parameter, int backward) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const c10::AutoGradMode no_grad(false);
  const bool counts = buckets_.on_gradient(parameter, sync_);
  if (!sync_) {
    return;
  }
  // After begin() another id is that of a backward within this one, of a checkpointed module.
  if (!backward_.begun && backward_.has_gradient && backward_.id != backward &&
      overlap_ == Overlap::kRefused) {
    throw Error(
        where_,
        "the previous backward has not ended, probably because it threw; end the program after "
        "such an exception, or call abandon_backward()");
  }
  if (!backward_.has_gradient) {
    buckets_.begin_backward();
    backward_.has_gradient = true;
    backward_.id = backward;
    // After begin() the caller ends the reduction: autograd would call this at the end of the inner
    // backward.
    if (auto self = self_.lock(); self && !backward_.begun) {
      BackwardHooks::at_end_of_backward([self = std::move(self)] { self->finish(); });
    }
  }
  if (arrived_[parameter]) {
    if (counts && bucket_of_[parameter] < backward_.next_bucket) {
      throw ConfigError(
          where_,
          fmt::format(
              "parameter {} got a second gradient in one backward, after its bucket was sent; run "
              "the inner backward within no_sync() (set_sync(false))",
              buckets_.parameter_name(parameter)));
    }
    return;
  }
  arrived_[parameter] = true;
  --missing_[bucket_of_[parameter]];
  while (!deferred_ && backward_.next_bucket < missing_.size() &&
         missing_[backward_.next_bucket] == 0) {
    start_next();
  }
}

void GradientReduction::start_next() {
  try {
    begin_reduction();
  } catch (...) {
    reset();  // No bucket has started.
    throw;
  }
  buckets_.start_bucket(backward_.next_bucket++);
}

void GradientReduction::begin_reduction() {
  if (!std::exchange(backward_.has_started_reduction, true)) {
    buckets_.begin_reduction();
  }
}

void GradientReduction::finish() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const c10::AutoGradMode no_grad(false);
  if (backward_.has_gradient || backward_.must_average) {
    finish_locked();
  } else if (std::exchange(backward_.begun, false)) {
    buckets_.finish_local_backward();
  }
}

void GradientReduction::reduce_without_backward() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const c10::AutoGradMode no_grad(false);
  finish_locked();
}

void GradientReduction::finish_locked() {
  try {
    begin_reduction();
    while (backward_.next_bucket < missing_.size()) {
      start_next();
    }
    buckets_.finish_buckets();
  } catch (...) {
    buckets_.abandon_buckets(/*wait=*/false);
    ++reductions_;
    reset();
    throw;
  }
  ++reductions_;
  reset();
}

void GradientReduction::abandon() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  const c10::AutoGradMode no_grad(false);
  buckets_.abandon_buckets(/*wait=*/true);
  // Ranks on which this backward did not fail count it, too.
  if (backward_.next_bucket > 0) {
    ++reductions_;
  }
  reset();
}

void GradientReduction::reset() {
  backward_ = {};
  arrived_.assign(bucket_of_.size(), false);
  missing_ = sizes_;
}

}  // namespace lockstep
