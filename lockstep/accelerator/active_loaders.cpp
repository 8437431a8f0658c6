// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/active_loaders.h"

#include <algorithm>

namespace lockstep {

void ActiveLoaders::pass_started(const void* loader) {
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

}  // namespace lockstep
