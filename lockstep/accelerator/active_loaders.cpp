// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/active_loaders.h"

#include <algorithm>
#include <utility>

namespace lockstep {

ActiveLoaders::ActiveLoaders(Group group, std::vector<data::RngType> rng_types)
    : group_(std::move(group)), rng_types_(std::move(rng_types)) {}

void ActiveLoaders::pass_started(const void* loader) {
  if (!rng_types_.empty() && group_.size() > 1) {
    data::synchronize_rng_states(group_, rng_types_);
  }
  stack_.emplace_back(loader, std::nullopt);
}

void ActiveLoaders::batch_started(const void* loader, const data::BatchInfo& info) {
  for (auto& [id, batch] : stack_) {
    if (id == loader) {
      batch = info;
    }
  }
}

void ActiveLoaders::pass_ended(const void* loader) {
  stack_.erase(
      std::remove_if(
          stack_.begin(), stack_.end(), [&](const auto& entry) { return entry.first == loader; }),
      stack_.end());
}

const data::BatchInfo* ActiveLoaders::current() const {
  if (stack_.empty() || !stack_.back().second) {
    return nullptr;
  }
  return &*stack_.back().second;
}

bool ActiveLoaders::at_last_round() const {
  const data::BatchInfo* batch = current();
  return batch != nullptr && batch->is_last_somewhere;
}

}  // namespace lockstep
