// SPDX-License-Identifier: Apache-2.0
#include "lockstep/sync/local_sgd/local_sgd.h"

#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/flat/coalesce.h"
#include "lockstep/flat/parameters.h"
#include "lockstep/sync/agreement.h"

namespace lockstep {
namespace {

void sort_in(
    const std::vector<at::Tensor>& tensors,
    std::vector<at::Tensor>& floating,
    std::vector<at::Tensor>& others) {
  for (const at::Tensor& tensor : tensors) {
    (tensor.is_floating_point() ? floating : others).push_back(tensor);
  }
}

}  // namespace

LocalSgdCore::LocalSgdCore(
    std::shared_ptr<DataParallel> model,
    const NamedTensors& parameters,
    const NamedTensors& buffers,
    Group group,
    LocalSgdOptions options,
    std::function<NamedTensors()> also_average)
    : model_(std::move(model)),
      group_(std::move(group)),
      options_(options),
      also_average_(std::move(also_average)) {
  if (options_.local_sgd_steps < 1 || options_.warmup_steps < 0) {
    throw ConfigError(
        "local_sgd",
        fmt::format(
            "local_sgd_steps or warmup_steps is out of range; got local_sgd_steps={}, "
            "warmup_steps={}; expected at least 1 and at least 0",
            options_.local_sgd_steps,
            options_.warmup_steps));
  }
  if (model_->comm_hook() != CommHookType::kNone && options_.enabled &&
      options_.local_sgd_steps > 1 && options_.warmup_steps == 0) {
    throw ConfigError(
        "local_sgd",
        fmt::format(
            "local SGD sends no gradients for comm hook {} to compress; got local_sgd_steps={}, "
            "warmup_steps=0; remove the hook, or set warmup_steps",
            name_of(model_->comm_hook()),
            options_.local_sgd_steps));
  }
  sort_in(tensors_of(trainable(parameters)), floating_, others_);
  if (options_.average_buffers) {
    sort_in(tensors_of(buffers), floating_, others_);
  }
  model_->set_local(averages_parameters());
}

LocalSgdCore::~LocalSgdCore() {
  abandon();
}

bool LocalSgdCore::averages_parameters() const {
  return active_ && options_.enabled && group_.size() > 1 && options_.local_sgd_steps > 1 &&
         steps_ >= options_.warmup_steps;
}

bool LocalSgdCore::step() {
  if (!active_) {
    return false;
  }
  dirty_ = dirty_ || averages_parameters();
  ++steps_;
  const bool due = (steps_ - options_.warmup_steps) % options_.local_sgd_steps == 0;
  const bool averaged = due && average();
  model_->set_local(averages_parameters());
  return averaged;
}

bool LocalSgdCore::average() {
  if (!dirty_) {
    return false;
  }
  std::vector<at::Tensor> floating = floating_;
  std::vector<at::Tensor> others = others_;
  if (also_average_) {
    sort_in(tensors_of(tensors_on_all_ranks(group_, also_average_())), floating, others);
  }
  flat::all_reduce_coalesced(group_, floating, ReduceOp::kAvg);
  flat::broadcast_coalesced(group_, others);
  dirty_ = false;
  return true;
}

bool LocalSgdCore::finish() {
  dirty_ = dirty_ || averages_parameters();  // A program may have forgotten to call step().
  const bool averaged = average();
  abandon();
  return averaged;
}

void LocalSgdCore::abandon() noexcept {
  if (active_) {
    active_ = false;
    dirty_ = false;
    model_->set_local(false);
  }
}

void LocalSgdCore::load_steps(int64_t steps) {
  if (steps < 0) {
    throw ConfigError(
        "local_sgd",
        fmt::format(
            "the number of local SGD steps is negative; got {}, expected at least 0", steps));
  }
  steps_ = steps;
  dirty_ = false;
  model_->set_local(averages_parameters());
}

}  // namespace lockstep
