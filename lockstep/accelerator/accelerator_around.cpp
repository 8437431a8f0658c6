// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <exception>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <ATen/ops/full.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/accelerator_state.h"
#include "lockstep/accelerator/executable_batch_size.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"

namespace lockstep {

void Accelerator::on_main_process(const std::function<void()>& body) const {
  on_process(0, body);
}

void Accelerator::on_local_main_process(const std::function<void()>& body) const {
  on_local_process(0, body);
}

void Accelerator::on_last_process(const std::function<void()>& body) const {
  on_process(num_processes() - 1, body);
}

void Accelerator::on_process(int process_index, const std::function<void()>& body) const {
  if (process_index < 0 || process_index >= num_processes()) {
    throw ConfigError(
        "on_process",
        fmt::format("no process {}; expected 0 to {}", process_index, num_processes() - 1));
  }
  if (this->process_index() == process_index) {
    body();
  }
}

void Accelerator::on_local_process(
    int local_process_index, const std::function<void()>& body) const {
  if (local_process_index < 0 || local_process_index >= state_->world.local_size) {
    throw ConfigError(
        "on_local_process",
        fmt::format(
            "no process {} on a host; expected 0 to {}",
            local_process_index,
            state_->world.local_size - 1));
  }
  if (this->local_process_index() == local_process_index) {
    body();
  }
}

namespace {

/// `first` runs `body` before the others; a failure there reaches them instead of leaving them
/// waiting.
void in_turn(Group& group, bool first, const std::function<void()>& body) {
  std::exception_ptr failure;
  if (first) {
    try {
      body();
    } catch (...) {
      failure = std::current_exception();
    }
  }
  const at::Tensor failed =
      group.all_reduce(at::full({1}, failure ? 1 : 0, at::kInt), ReduceOp::kMax).wait();
  if (failure) {
    std::rethrow_exception(failure);
  }
  if (failed.item<int>() != 0) {
    throw Error("main_process_first", "the main process failed; see its own message");
  }
  if (!first) {
    body();
  }
}

}  // namespace

void Accelerator::main_process_first(const std::function<void()>& body) {
  in_turn(state_->group, is_main_process(), body);
}

void Accelerator::local_main_process_first(const std::function<void()>& body) {
  in_turn(state_->group, is_local_main_process(), body);
}

void Accelerator::print(const std::string& line) const {
  if (is_local_main_process()) {
    around_status_line([&] {
      const std::string text = line + "\n";
      std::fwrite(text.data(), 1, text.size(), stdout);
      std::fflush(stdout);
    });
  }
}

void Accelerator::wait_for_everyone() {
  state_->group.barrier();
}

at::Tensor Accelerator::gather_samples(const at::Tensor& tensor) {
  const data::BatchInfo* batch = state_->active->current();
  bool per_sample =
      batch != nullptr && tensor.defined() && tensor.dim() > 0 && tensor.size(0) == batch->rows;
  if (batch != nullptr && use_distributed() &&
      std::any_of(batch->rows_per_rank.begin(), batch->rows_per_rank.end(), [&](int64_t rows) {
        return rows != batch->rows;
      })) {
    // A tensor of one row is a sample to the rank whose batch has one, and a value to the others.
    const at::Tensor all =
        state_->group.all_reduce(at::full({1}, per_sample ? 1 : 0, at::kInt), ReduceOp::kMin)
            .wait();
    per_sample = all.item<int>() != 0;
  }
  if (!per_sample) {
    return lockstep::gather(state_->group, tensor);
  }
  return lockstep::gather_rows(state_->group, tensor, batch->rows_per_rank, batch->valid_rows);
}

std::vector<nlohmann::json> Accelerator::gather_object(const nlohmann::json& value) {
  return lockstep::gather_object(state_->group, value);
}

nlohmann::json Accelerator::broadcast_object(const nlohmann::json& value, int from_process) {
  return lockstep::broadcast_object(state_->group, value, from_process);
}

std::vector<nlohmann::json> Accelerator::gather_object_for_metrics(const nlohmann::json& array) {
  const data::BatchInfo* batch = state_->active->current();
  if (!array.is_array()) {
    state_->group.refuse(comm::Op::kAllGather);
    throw ConfigError("gather_object_for_metrics", "expected an array, an element per sample");
  }
  nlohmann::json mine = array;
  if (batch != nullptr && static_cast<int64_t>(array.size()) == batch->rows) {
    mine.erase(mine.begin() + batch->valid_rows[static_cast<size_t>(process_index())], mine.end());
  }
  return lockstep::gather_object(state_->group, mine);
}

void Accelerator::set_trigger() {
  state_->triggered = true;
}

bool Accelerator::check_trigger() {
  const bool mine = std::exchange(state_->triggered, false);
  return state_->group.all_reduce(at::full({1}, mine ? 1 : 0, at::kInt), ReduceOp::kMax)
             .wait()
             .item<int>() != 0;
}

std::unique_ptr<Profile> Accelerator::profile(ProfileOptions options) const {
  if (options.output_trace_dir.empty() && !state_->options.project_config.logging_dir.empty()) {
    options.output_trace_dir = state_->options.project_config.logging_dir / "profile";
  }
  return std::make_unique<Profile>(std::move(options), process_index());
}

bool Accelerator::debug() const {
  return state_->debug;
}

void Accelerator::forget_prepared() {
  State& state = *state_;
  // The model is the program's, and nobody could bring it back later.
  if (const auto away = state.offloaded.find(OffloadStateType::kLpParams);
      away != state.offloaded.end()) {
    away->second.reload(/*non_blocking=*/false);
  }
  state.offloaded.clear();
  state.loop->offloaded = false;
  state.unknown.reset();
  state.judged_by_others = false;
  state.judged_models = 0;
  state.accumulation_check.watch({});
  state.schedulers.clear();
  state.optimizers.clear();
  state.own_optimizer_states.clear();
  state.optimizers_in_call.clear();
  state.models.clear();
  state.trains_in_16_bits = false;
  state.parallels.clear();
  state.sharding.reset();
  for (const auto& loader : state.loaders) {
    loader->set_observer(nullptr);
  }
  state.loaders.clear();
  state.norms = {};
  for (const auto& [model, local_sgd] : state.local_sgds) {
    local_sgd->abandon();
  }
  state.local_sgds.clear();
  state.restored_local_steps.clear();
  state.optimizers_differ = false;
  state.holds.clear();
  LoopState& loop = *state.loop;
  loop.finite = std::make_shared<FiniteGuard>(loop.finite->policy(), state.group);
  loop.begin_anew();
  loop.optimizers = 0;
  loop.gradients_used = loop.gradients_expected = false;
  loop.scaler_update_due = false;
  if (loop.scaler) {
    loop.scaler->forget_optimizers();
  }
  release_cached_memory();
}

}  // namespace lockstep
