// SPDX-License-Identifier: Apache-2.0
#include "lockstep/sync/join_coordinator.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ops/zeros.h>

#include "lockstep/base/error.h"

namespace lockstep {

JoinCoordinator::JoinCoordinator(Group group, size_t models, JoinOptions options)
    : group_(std::move(group)), models_(models), options_(options) {}

// The message has a flag of each rank, one of each model, and one of each model that keeps an
// average.
void JoinCoordinator::start(bool alive, size_t model, bool kept) {
  const auto ranks = static_cast<size_t>(group_.size());
  at::Tensor sums = at::zeros({static_cast<int64_t>(ranks + 2 * models_)}, at::kLong);
  auto* values = sums.mutable_data_ptr<int64_t>();
  if (alive) {
    values[group_.rank()] = 1;
    values[ranks + model] = 1;
    values[ranks + models_ + model] = kept ? 1 : 0;
  }
  pending_ = group_.all_reduce(std::move(sums));
}

const JoinCoordinator::ActiveRanks& JoinCoordinator::wait() {
  if (!pending_) {
    return counts_;
  }
  const at::Tensor sums = pending_->wait();
  pending_.reset();
  const auto ranks = static_cast<size_t>(group_.size());
  const int64_t* values = sums.const_data_ptr<int64_t>();
  const int64_t* by_model = values + ranks;
  counts_ = {};
  for (int rank = 0; rank < group_.size(); ++rank) {
    if (values[rank] > 0) {
      counts_.alive.push_back(rank);
    }
  }
  if (counts_.alive.empty()) {
    return counts_;
  }
  const auto named = std::count_if(by_model, by_model + models_, [](int64_t n) { return n > 0; });
  if (named != 1) {
    throw CommError(
        "join",
        fmt::format(
            "ranks average different models at the same time; number of ranks for models 0, 1, "
            "...: {}; run the same backward passes in the same order on every rank",
            fmt::join(by_model, by_model + models_, ", ")));
  }
  latest_rank_ = counts_.alive.front();
  counts_.model = static_cast<size_t>(
      std::find_if(by_model, by_model + models_, [](int64_t n) { return n > 0; }) - by_model);
  counts_.kept = by_model[models_ + counts_.model] > 0;
  return counts_;
}

void JoinCoordinator::refuse_early_end(bool this_rank) const {
  if (options_.throw_on_early_termination &&
      counts_.alive.size() < static_cast<size_t>(group_.size()) && !counts_.alive.empty()) {
    throw ConfigError(
        "join",
        fmt::format(
            "{} has run out of data before the others; only rank {} had more; shard the data "
            "evenly, or leave throw_on_early_termination off",
            this_rank ? "this rank" : "another rank",
            fmt::join(counts_.alive, ", ")));
  }
}

void JoinCoordinator::announce(size_t model, bool kept) {
  start(true, model, kept);
  if (options_.throw_on_early_termination) {
    wait();
    refuse_early_end(false);
  }
}

const JoinCoordinator::ActiveRanks& JoinCoordinator::answer() {
  start(false, 0, false);
  wait();
  refuse_early_end(true);
  return counts_;
}

double JoinCoordinator::factor() const {
  return options_.divide_by_initial_world_size || counts_.alive.empty()
             ? 1.0
             : static_cast<double>(group_.size()) / static_cast<double>(counts_.alive.size());
}

}  // namespace lockstep
