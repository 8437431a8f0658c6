// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/flat_optimizer.h"

#include <utility>

#include <fmt/format.h>

#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/optim/flat/flat_parameter_groups.h"
#include "lockstep/optim/update/device_steps_and_rates.h"
#include "lockstep/optim/update/host_strategy.h"
#include "lockstep/optim/update/plain_strategy.h"
#include "lockstep/optim/update/sharded_strategy.h"
#include "lockstep/optim/update/shared_memory_strategy.h"

namespace lockstep::optim {

FlatOptimizer::FlatOptimizer(
    std::shared_ptr<const UpdateRule> rule,
    std::vector<torch::optim::OptimizerParamGroup> groups,
    std::unique_ptr<torch::optim::OptimizerOptions> defaults)
    : torch::optim::Optimizer(
          checked_groups(rule->traits().name, std::move(groups)), std::move(defaults)),
      flat_groups_(std::make_unique<FlatParameterGroups>(std::move(rule), param_groups_)),
      steps_and_rates_(std::make_unique<DeviceStepsAndRates>(*flat_groups_)),
      strategy_(std::make_unique<PlainStrategy>(*flat_groups_, *steps_and_rates_)) {}

FlatOptimizer::~FlatOptimizer() = default;

FlatOptimizer::FlatOptimizer(FlatOptimizer&& other) noexcept
    : torch::optim::Optimizer(static_cast<torch::optim::Optimizer&&>(other)),
      flat_groups_(std::move(other.flat_groups_)),
      steps_and_rates_(std::move(other.steps_and_rates_)),
      strategy_(std::move(other.strategy_)),
      host_(other.host_),
      call_guard_(std::move(other.call_guard_)),
      run_count_(other.run_count_) {
  flat_groups_->set_param_groups(param_groups_);
}

void FlatOptimizer::set_call_guard(std::function<void(const char* call)> guard) {
  call_guard_ = std::move(guard);
}

void FlatOptimizer::zero_grad(bool set_to_none) {
  if (call_guard_) {
    call_guard_("zero_grad()");
  }
  torch::optim::Optimizer::zero_grad(set_to_none);
}

at::Tensor FlatOptimizer::step(LossClosure closure) {
  if (call_guard_) {
    call_guard_("step()");
  }
  at::Tensor loss;
  if (closure) {
    const c10::AutoGradMode with_grad(true);
    loss = closure();
  }
  const c10::AutoGradMode no_grad(false);
  flat_groups_->adopt();
  flat_groups_->check_gradients();
  steps_and_rates_->place(/*on_host=*/host_ != nullptr);
  run_count_ = strategy_->step();
  return loss;
}

void FlatOptimizer::save(torch::serialize::OutputArchive& /*archive*/) const {
  throw ConfigError(
      "optim",
      "torch::save cannot save this optimizer, since its archives have no parameter names; use "
      "Accelerator::save_state, or write optimizer_tensors() and optimizer_settings() to your own "
      "file");
}

void FlatOptimizer::load(torch::serialize::InputArchive& /*archive*/) {
  throw ConfigError(
      "optim",
      "torch::load cannot load this optimizer, since its archives have no parameter names; use "
      "Accelerator::load_state, or check_optimizer() with your own file");
}

void FlatOptimizer::adopt_parameters() {
  flat_groups_->adopt();
}

void FlatOptimizer::follow_parameters() {
  if (flat_groups_->has_moved_parameters()) {
    discard_speculative();
  }
  flat_groups_->follow_parameters();
}

void FlatOptimizer::share(const Group& group) {
  if (group.size() == 1) {
    return;
  }
  flat_groups_->share(group);
  strategy_ = std::make_unique<SharedMemoryStrategy>(*flat_groups_, *steps_and_rates_, group);
}

bool FlatOptimizer::is_shared() const {
  return flat_groups_->is_shared();
}

void FlatOptimizer::update_shards(
    const std::vector<std::vector<BufferSlices>>& slices,
    const OffloadOptimizer& offload,
    const std::optional<Group>& ranks,
    bool fp32_state) {
  const c10::AutoGradMode no_grad(false);
  flat_groups_->adopt();
  check_can_shard(offload, ranks);
  flat_groups_->use_shard_slices(slices, ranks, fp32_state);
  if (offload.device != OffloadDevice::kNone) {
    auto host = std::make_unique<HostStrategy>(*flat_groups_, offload, ranks);
    host_ = host.get();
    strategy_ = std::move(host);
  } else if (has_parameters_in_files(*flat_groups_)) {
    throw ConfigError(
        "offload",
        "offload_param.device nvme needs an update on the host; got offload_optimizer.device none, "
        "expected cpu or nvme");
  } else {
    host_ = nullptr;
    strategy_ = std::make_unique<ShardedStrategy>(*flat_groups_, *steps_and_rates_, ranks);
  }
  flat_groups_->create_eager_state();
}

void FlatOptimizer::check_can_shard(
    const OffloadOptimizer& offload, const std::optional<Group>& ranks) {
  bool needs_full = false;
  for (size_t group = 0; group < flat_groups_->group_count(); ++group) {
    needs_full = needs_full || flat_groups_->needs_full(group);
  }
  if (needs_full && offload.device != OffloadDevice::kNone) {
    throw ConfigError(
        "optim",
        fmt::format(
            "{} cannot be combined with offload_optimizer: it needs full parameters, and "
            "offload_optimizer updates shard slices; remove offload_optimizer, or use an "
            "elementwise optimizer such as AdamW",
            traits().name));
  }
  if (needs_full && !ranks) {
    throw ConfigError(
        "optim",
        fmt::format(
            "{} needs full parameters; got shard slices without the ranks that own the other "
            "slices",
            traits().name));
  }
}

const HostUpdate* FlatOptimizer::host_update() const {
  return host_ != nullptr ? &host_->host_update() : nullptr;
}

std::shared_ptr<SpeculativeUpdates> FlatOptimizer::speculative() const {
  return host_ != nullptr ? host_->speculative() : nullptr;
}

void FlatOptimizer::write_rates() {
  steps_and_rates_->write_rates();
}

const UpdateRule& FlatOptimizer::rule() const {
  return *flat_groups_->rule();
}

void FlatOptimizer::complete_state() {
  flat_groups_->complete_state();
}

std::vector<int64_t> FlatOptimizer::full_sizes(const at::Tensor& parameter) const {
  return flat_groups_->full_sizes(parameter);
}

FlatOptimizer::ParameterState FlatOptimizer::state_of(const at::Tensor& parameter) const {
  return flat_groups_->state_of(parameter);
}

void FlatOptimizer::set_state(const at::Tensor& parameter, const ParameterState& state) {
  discard_speculative();
  flat_groups_->set_state(parameter, state);
}

void FlatOptimizer::discard_speculative() {
  if (host_ != nullptr && host_->speculative()) {
    host_->speculative()->discard();
  }
}

}  // namespace lockstep::optim
