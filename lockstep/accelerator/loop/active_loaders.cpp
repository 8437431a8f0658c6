// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/loop/active_loaders.h"

#include <algorithm>
#include <utility>

#include "lockstep/accelerator/loop/step_recorder.h"

namespace lockstep {

ActiveLoaders::ActiveLoaders(Group group, std::vector<data::RngType> rng_types)
    : group_(std::move(group)), rng_types_(std::move(rng_types)) {}

void ActiveLoaders::pass_requested(const void* /*loader*/) {
  if (before_pass_) {
    before_pass_();
  }
  if (recorder_) {
    recorder_->begin_data();
  }
}

void ActiveLoaders::pass_started(const void* loader, bool from_its_beginning) {
  // A resumed pass was synchronized at its beginning, and its random states were restored.
  if (from_its_beginning && !rng_types_.empty() && group_.size() > 1) {
    data::synchronize_rng_states(group_, rng_types_);
  }
  stack_.push_back({.loader = loader});
  if (recorder_) {
    stack_.back().times_at_begin = recorder_->begin_pass(stack_.size() == 1);
  }
}

void ActiveLoaders::batch_started(const void* loader, const data::BatchInfo& info) {
  for (Pass& pass : stack_) {
    if (pass.loader == loader) {
      pass.batch = info;
    }
  }
  if (recorder_) {
    recorder_->end_data();
    recorder_->add_samples(is_outermost(loader) ? info.rows : 0);
  }
}

void ActiveLoaders::batch_ended(const void* loader) {
  call_between_batches(loader);
  if (recorder_) {
    if (is_outermost(loader)) {
      recorder_->end_body();
    }
    recorder_->begin_data();
  }
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

void ActiveLoaders::mark_trained() {
  for (Pass& pass : stack_) {
    pass.trains = true;
    trained_.insert(pass.loader);
  }
}

data::Cursor ActiveLoaders::position_to_save(const data::LoaderCore& loader) const {
  const data::Cursor cursor = loader.cursor();
  if (loader.left_early() && !has_trained(&loader)) {
    return {.seed = cursor.seed, .epoch = loader.epoch()};
  }
  return cursor;
}

void ActiveLoaders::pass_ended(const void* loader) {
  const auto ended = std::find_if(
      stack_.begin(), stack_.end(), [&](const Pass& item) { return item.loader == loader; });
  if (recorder_ && ended != stack_.end()) {
    recorder_->end_pass(ended == stack_.begin(), ended->trains, ended->times_at_begin);
  }
  stack_.erase(
      std::remove_if(
          stack_.begin(), stack_.end(), [&](const Pass& pass) { return pass.loader == loader; }),
      stack_.end());
}

const data::BatchInfo* ActiveLoaders::current() const {
  if (stack_.empty() || !stack_.back().batch) {
    return nullptr;
  }
  return &*stack_.back().batch;
}

bool ActiveLoaders::at_last_global_batch() const {
  const data::BatchInfo* batch = current();
  return batch != nullptr && batch->is_last_somewhere;
}

}  // namespace lockstep
