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

/// Models answer to a roll call for as long as this lives.
class Enrolment {
 public:
  Enrolment(
      std::vector<std::shared_ptr<Reducer>> models,
      const std::shared_ptr<JoinCoordinator>& join_coordinator)
      : models_(std::move(models)) {
    for (size_t i = 0; i < models_.size(); ++i) {
      models_[i]->set_join_coordinator(join_coordinator, i, /*defer=*/models_.size() > 1);
    }
  }
  ~Enrolment() {
    for (const auto& model : models_) {
      model->set_join_coordinator(nullptr, 0, false);
    }
  }
  Enrolment(const Enrolment&) = delete;
  Enrolment& operator=(const Enrolment&) = delete;

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
    throw ConfigError("join", "needs at least one model");
  }
  Group group = reducers.front()->group();
  if (group.size() == 1) {
    body();
    return;
  }
  const auto join_coordinator = std::make_shared<JoinCoordinator>(group, reducers.size(), options);
  {
    const Enrolment enrolment(reducers, join_coordinator);
    body();
    for (auto roll = join_coordinator->answer(); !roll.alive.empty();
         roll = join_coordinator->answer()) {
      reducers[roll.model]->average_without_data(roll.kept && options.divide_by_initial_world_size);
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
