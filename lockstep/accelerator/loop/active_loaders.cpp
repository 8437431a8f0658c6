// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/loop/active_loaders.h"

#include <algorithm>
#include <utility>

namespace lockstep {

ActiveLoaders::ActiveLoaders(Group group, std::vector<data::RngType> rng_types)
    : group_(std::move(group)), rng_types_(std::move(rng_types)) {}

void ActiveLoaders::pass_requested(const void* /*loader*/) {
  if (before_pass_) {
    before_pass_();
  }
}

void ActiveLoaders::pass_started(const void* loader, bool from_its_beginning) {
  // A resumed pass was synchronized at its beginning, and its random states were restored.
  if (from_its_beginning && !rng_types_.empty() && group_.size() > 1) {
    data::synchronize_rng_states(group_, rng_types_);
  }
  stack_.push_back({.loader = loader});
}

void ActiveLoaders::batch_started(const void* loader, const data::BatchInfo& info) {
  for (Pass& pass : stack_) {
    if (pass.loader == loader) {
      pass.batch = info;
    }
  }
}

void ActiveLoaders::batch_ended(const void* loader) {
  // With two loops at once, the outer one asks for its next batch first.
  if (!between_batches_ || stack_.empty() || stack_[0].loader != loader || !stack_[0].trains) {
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

void ActiveLoaders::pass_ended(const void* loader) {
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
