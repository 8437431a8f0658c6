// SPDX-License-Identifier: Apache-2.0
#include "lockstep/sync/roll_call.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ops/zeros.h>

#include "lockstep/base/error.h"

namespace lockstep {

RollCall::RollCall(Group group, size_t models, JoinOptions options)
    : group_(std::move(group)), models_(models), options_(options) {}

// What travels: a flag of each rank, then one of each model, then what is kept of each model.
void RollCall::start(bool alive, size_t model, bool kept) {
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

const RollCall::Roll& RollCall::wait() {
  if (!pending_) {
    return roll_;
  }
  const at::Tensor sums = pending_->wait();
  pending_.reset();
  const auto ranks = static_cast<size_t>(group_.size());
  const int64_t* values = sums.const_data_ptr<int64_t>();
  const int64_t* by_model = values + ranks;
  roll_ = {};
  for (int rank = 0; rank < group_.size(); ++rank) {
    if (values[rank] > 0) {
      roll_.alive.push_back(rank);
    }
  }
  if (roll_.alive.empty()) {
    return roll_;
  }
  const auto named = std::count_if(by_model, by_model + models_, [](int64_t n) { return n > 0; });
  if (named != 1) {
    throw CommError(
        "join",
        fmt::format(
            "ranks average different models at the same time; got so many ranks for each model: "
            "{}; "
            "run the same backwards in the same order on every rank",
            fmt::join(by_model, by_model + models_, ", ")));
  }
  latest_rank_ = roll_.alive.front();
  roll_.model = static_cast<size_t>(
      std::find_if(by_model, by_model + models_, [](int64_t n) { return n > 0; }) - by_model);
  roll_.kept = by_model[models_ + roll_.model] > 0;
  return roll_;
}

void RollCall::refuse_early_end(bool here) const {
  if (options_.throw_on_early_termination &&
      roll_.alive.size() < static_cast<size_t>(group_.size()) && !roll_.alive.empty()) {
    throw ConfigError(
        "join",
        fmt::format(
            "{} has run out of data before the others; only rank {} had more; shard the data "
            "evenly, "
            "or leave throw_on_early_termination off",
            here ? "this rank" : "another rank",
            fmt::join(roll_.alive, ", ")));
  }
}

void RollCall::announce(size_t model, bool kept) {
  start(true, model, kept);
  if (options_.throw_on_early_termination) {
    wait();
    refuse_early_end(false);
  }
}

const RollCall::Roll& RollCall::answer() {
  start(false, 0, false);
  wait();
  refuse_early_end(true);
  return roll_;
}

double RollCall::factor() const {
  return options_.divide_by_initial_world_size || roll_.alive.empty()
             ? 1.0
             : static_cast<double>(group_.size()) / static_cast<double>(roll_.alive.size());
}

}  // namespace lockstep
