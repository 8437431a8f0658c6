// SPDX-License-Identifier: Apache-2.0
#include "lockstep/sync/join.h"

#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/flat/coalesce.h"
#include "lockstep/sync/data_parallel.h"
#include "lockstep/sync/join_coordinator.h"
#include "lockstep/sync/reducer.h"

namespace lockstep {
namespace {

/// RAII scope: models announce their averagings to the coordinator.
class JoinScope {
 public:
  JoinScope(
      std::vector<std::shared_ptr<Reducer>> models,
      const std::shared_ptr<JoinCoordinator>& join_coordinator)
      : models_(std::move(models)) {
    for (size_t i = 0; i < models_.size(); ++i) {
      models_[i]->set_join_coordinator(join_coordinator, i, /*defer=*/models_.size() > 1);
    }
  }
  ~JoinScope() {
    for (const auto& model : models_) {
      model->set_join_coordinator(nullptr, 0, false);
    }
  }
  JoinScope(const JoinScope&) = delete;
  JoinScope& operator=(const JoinScope&) = delete;

 private:
  std::vector<std::shared_ptr<Reducer>> models_;
};

}  // namespace

void run_joined(
    const std::vector<std::shared_ptr<DataParallel>>& models,
    const std::function<void()>& body,
    JoinOptions options,
    const std::function<std::vector<at::Tensor>()>& more) {
  std::vector<std::shared_ptr<Reducer>> reducers;
  for (const auto& model : models) {
    reducers.push_back(model->reducer_);
    if (model->reducer_->has_join_coordinator()) {
      throw ConfigError("join", "a join of this model is already running; do not nest them");
    }
  }
  if (reducers.empty()) {
    throw ConfigError("join", "join needs at least one model; got none");
  }
  Group group = reducers.front()->group();
  if (group.size() == 1) {
    body();
    return;
  }
  const auto join_coordinator = std::make_shared<JoinCoordinator>(group, reducers.size(), options);
  {
    const JoinScope scope(reducers, join_coordinator);
    body();
    for (auto ranks = join_coordinator->answer(); !ranks.alive.empty();
         ranks = join_coordinator->answer()) {
      reducers[ranks.model]->average_without_data(
          ranks.kept && options.divide_by_initial_world_size);
    }
  }
  const int root = join_coordinator->latest_rank();
  for (const auto& model : models) {
    flat::broadcast_coalesced(group, model->everything_, root);
  }
  if (more) {
    flat::broadcast_coalesced(group, more(), root);
  }
}

}  // namespace lockstep
