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

Join::Join(std::vector<std::shared_ptr<DataParallel>> models, JoinOptions options)
    : models_(std::move(models)), options_(options) {
  if (models_.empty()) {
    throw ConfigError("join", "join needs at least one model; got none");
  }
  for (const auto& model : models_) {
    if (model->reducer_->has_join_coordinator()) {
      throw ConfigError("join", "a join of this model is already running; do not nest them");
    }
  }
  const Group group = models_.front()->reducer_->group();
  if (group.size() == 1) {
    return;
  }
  coordinator_ = std::make_shared<JoinCoordinator>(group, models_.size(), options_);
  for (size_t i = 0; i < models_.size(); ++i) {
    models_[i]->reducer_->set_join_coordinator(coordinator_, i, /*defer=*/models_.size() > 1);
  }
}

Join::~Join() {
  leave();
}

/// Lets the models average without announcing it.
void Join::leave() noexcept {
  if (coordinator_) {
    for (const auto& model : models_) {
      model->reducer_->set_join_coordinator(nullptr, 0, false);
    }
    coordinator_.reset();
  }
}

void Join::finish(const std::function<std::vector<at::Tensor>()>& more) {
  if (!coordinator_) {
    return;
  }
  for (auto ranks = coordinator_->answer(); !ranks.alive.empty(); ranks = coordinator_->answer()) {
    models_[ranks.model]->reducer_->average_without_data(
        ranks.kept && options_.divide_by_initial_world_size);
  }
  const int root = coordinator_->latest_rank();
  leave();
  Group group = models_.front()->reducer_->group();
  for (const auto& model : models_) {
    flat::broadcast_coalesced(group, model->everything_, root);
  }
  if (more) {
    flat::broadcast_coalesced(group, more(), root);
  }
}

}  // namespace lockstep
