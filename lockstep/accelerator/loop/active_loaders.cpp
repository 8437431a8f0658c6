// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/loop/active_loaders.h"

#include <algorithm>
#include <utility>

#include <c10/core/GradMode.h>

namespace lockstep::internal {

ActiveLoaders::ActiveLoaders(
    Group group, std::vector<data::RngType> rng_types, std::shared_ptr<TrainingStep> step)
    : group_(std::move(group)), rng_types_(std::move(rng_types)), step_(std::move(step)) {}

void ActiveLoaders::pass_requested(const void* /*loader*/) {
  if (before_pass_) {
    before_pass_();
  }
  step_->notify(&TrainingStepObserver::batch_requested);
}

void ActiveLoaders::pass_started(const void* loader, bool from_its_beginning) {
  // A resumed pass was synchronized at its beginning, and its random states were restored.
  if (from_its_beginning && !rng_types_.empty() && group_.size() > 1) {
    data::synchronize_rng_states(group_, rng_types_);
  }
  stack_.push_back({.loader = loader});
  step_->notify(&TrainingStepObserver::loader_pass_began, loader, stack_.size() == 1);
}

void ActiveLoaders::batch_started(const void* loader, const data::BatchInfo& info) {
  left_batch_.reset();
  for (Pass& pass : stack_) {
    pass.in_use = pass.in_use && !stepped_;
    if (pass.loader == loader) {
      pass.batch = info;
      pass.has_batch = true;
      pass.started = ++batches_started_;
      pass.in_use = true;
      pass.with_gradients = c10::GradMode::is_enabled();
      ++pass.unused_batches;
    }
  }
  stepped_ = false;
  step_->notify(&TrainingStepObserver::batch_began, is_outermost(loader) ? info.rows : 0);
}

void ActiveLoaders::batch_ended(const void* loader) {
  for (Pass& pass : stack_) {
    pass.has_batch = pass.has_batch && pass.loader != loader;
  }
  call_between_batches(loader);
  if (is_outermost(loader)) {
    step_->notify(&TrainingStepObserver::body_ended);
  }
  step_->notify(&TrainingStepObserver::batch_requested);
}

bool ActiveLoaders::is_outermost(const void* loader) const {
  return !stack_.empty() && stack_[0].loader == loader;
}

void ActiveLoaders::call_between_batches(const void* loader) {
  // With two loops at once, the outer one asks for its next batch first.
  if (!between_batches_ || !is_outermost(loader) || !stack_[0].trains) {
    return;
  }
  const bool all_had_one = std::all_of(stack_.begin(), stack_.end(), [](const Pass& pass) {
    return !pass.batch || std::all_of(
                              pass.batch->rows_per_rank.begin(),
                              pass.batch->rows_per_rank.end(),
                              [](int64_t rows) { return rows > 0; });
  });
  if (all_had_one) {
    between_batches_();
  }
}

void ActiveLoaders::backward_began() {
  std::vector<Pass*> used;
  for (Pass& pass : stack_) {
    pass.trains = true;
    trained_.insert(pass.loader);
    if (is_used(pass)) {
      used.push_back(&pass);
    }
  }
  for (Pass* pass : used) {
    loops_.try_emplace(pass->loader);
    pass->used_batches += pass->unused_batches > 0 ? 1 : 0;
    pass->unused_batches = 0;
    pass->steps = true;
  }
  stepped_ = true;
}

const TrainingLoops* ActiveLoaders::training_loops(const void* loader) const {
  const auto found = loops_.find(loader);
  return found == loops_.end() ? nullptr : &found->second;
}

void ActiveLoaders::forget() {
  trained_.clear();
  loops_.clear();
}

data::Cursor ActiveLoaders::position_to_save(const data::LoaderCore& loader) const {
  const data::Cursor cursor = loader.cursor();
  if (loader.left_early() && !has_trained(&loader)) {
    return {.seed = cursor.seed, .epoch = loader.epoch()};
  }
  return cursor;
}

bool ActiveLoaders::is_at_last_batch(const data::LoaderCore& loader) const {
  return std::any_of(stack_.begin(), stack_.end(), [&](const Pass& pass) {
    return pass.loader == &loader && pass.has_batch && pass.batch->ends_pass;
  });
}

void ActiveLoaders::pass_ended(const void* loader) {
  const auto ended = std::find_if(
      stack_.begin(), stack_.end(), [&](const Pass& item) { return item.loader == loader; });
  if (ended != stack_.end() && ended->has_batch && &*ended->batch == current() &&
      ended->batch->valid_rows != ended->batch->rows_per_rank) {
    left_batch_ = ended->batch;
  }
  if (ended != stack_.end() && ended->steps) {
    TrainingLoops& loops = loops_[loader];
    ++loops.ended;
    loops.last_batches = ended->used_batches;
  }
  if (ended != stack_.end()) {
    step_->notify(
        &TrainingStepObserver::loader_pass_ended, loader, ended == stack_.begin(), ended->trains);
  }
  stack_.erase(
      std::remove_if(
          stack_.begin(), stack_.end(), [&](const Pass& pass) { return pass.loader == loader; }),
      stack_.end());
}

const data::BatchInfo* ActiveLoaders::current() const {
  if (left_batch_) {
    return &*left_batch_;
  }
  const auto newest =
      std::max_element(stack_.begin(), stack_.end(), [](const Pass& a, const Pass& b) {
        return a.started < b.started;
      });
  return newest != stack_.end() && newest->batch ? &*newest->batch : nullptr;
}

bool ActiveLoaders::is_used(const Pass& pass) const {
  // A loop that got several batches without a backward, or one without gradients, is an evaluation,
  // unless there is no other loop.
  const auto trains = [](const Pass& other) {
    return other.in_use && (other.steps || (other.unused_batches == 1 && other.with_gradients));
  };
  return trains(pass) || (pass.in_use && std::none_of(stack_.begin(), stack_.end(), trains));
}

bool ActiveLoaders::at_last_global_batch() const {
  return std::any_of(stack_.begin(), stack_.end(), [&](const Pass& pass) {
    return is_used(pass) && pass.batch->is_last_somewhere;
  });
}

}  // namespace lockstep::internal
