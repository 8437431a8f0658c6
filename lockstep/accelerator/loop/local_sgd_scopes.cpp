// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/loop/local_sgd_scopes.h"

#include <algorithm>

namespace lockstep::internal {

bool LocalSgdScopes::has(const void* model) const {
  return std::any_of(
      scopes_.begin(), scopes_.end(), [&](const auto& scope) { return scope.first == model; });
}

void LocalSgdScopes::add(const void* model, std::shared_ptr<LocalSgdCore> core) {
  const size_t index = scopes_.size();
  if (index < restored_steps_.size() && restored_steps_[index]) {
    core->load_steps(*std::exchange(restored_steps_[index], std::nullopt));
  }
  scopes_.emplace_back(model, std::move(core));
  optimizers_differ_ = false;
}

void LocalSgdScopes::remove(const std::shared_ptr<LocalSgdCore>& core) {
  std::erase_if(scopes_, [&](const auto& scope) { return scope.second == core; });
}

void LocalSgdScopes::average() {
  for (const auto& [model, core] : scopes_) {
    core->average();
  }
}

std::vector<int64_t> LocalSgdScopes::steps() const {
  std::vector<int64_t> steps;
  for (const auto& [model, core] : scopes_) {
    steps.push_back(core->steps());
  }
  return steps;
}

void LocalSgdScopes::restore(const std::vector<int64_t>& steps, bool own_states) {
  optimizers_differ_ = own_states && scopes_.size() < steps.size();
  for (size_t i = 0; i < steps.size(); ++i) {
    if (i < scopes_.size()) {
      scopes_[i].second->load_steps(steps[i]);
      restored_steps_.emplace_back();
    } else {
      restored_steps_.emplace_back(steps[i]);
    }
  }
}

void LocalSgdScopes::forget_restored() {
  restored_steps_.clear();
  optimizers_differ_ = false;
}

bool LocalSgdScopes::take_different_optimizers() {
  return scopes_.empty() && std::exchange(optimizers_differ_, false);
}

void LocalSgdScopes::abandon() {
  for (const auto& [model, core] : scopes_) {
    core->abandon();
  }
  scopes_.clear();
  forget_restored();
}

}  // namespace lockstep::internal
