// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/accelerator.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <thread>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>

#include "lockstep/accelerator/accelerator_state.h"
#include "lockstep/base/cores.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/rank.h"

namespace lockstep {
namespace {

/// Without a launcher that says so, every rank would start a thread for every core.
void share_cores(const WorldSpec& world) {
  if (world.size == 1 || Environment::process().text("OMP_NUM_THREADS")) {
    return;
  }
  // srun and mpirun may have bound this rank to its share already.
  const int cores = available_cores();
  const int share = static_cast<int>(std::thread::hardware_concurrency()) / world.local_size;
  at::set_num_threads(cores > share ? std::max(1, cores / world.local_size) : cores);
}

/// Two buckets cannot both hold one gradient.
template <typename Models>
void refuse_shared_parameters(const Models& models, const NamedTensors& parameters) {
  for (const auto& model : models) {
    for (const NamedTensor& theirs : model.parameters()) {
      for (const NamedTensor& ours : parameters) {
        if (ours.tensor.is_same(theirs.tensor)) {
          throw ConfigError(
              "prepare",
              fmt::format(
                  "{} of this model is {} of a model prepared before; prepare one module that "
                  "holds both",
                  ours.name,
                  theirs.name));
        }
      }
    }
  }
}

WorldSpec find_world() {
  WorldSpec world = world_from_environment(Environment::process());
  set_process_rank({world.rank, world.size});
  share_cores(world);
  return world;
}

}  // namespace

Accelerator::Accelerator(AcceleratorOptions options) : state_(std::make_unique<State>()) {
  state_->world = find_world();
  state_->group = connect(state_->world, options.connect);
  state_->options = std::move(options);
  log_debug(fmt::format(
      "rank {} of {} ({}), transport {}",
      state_->world.rank,
      state_->world.size,
      state_->world.source,
      state_->group.transport_name()));
}

Accelerator::Accelerator(AcceleratorOptions options, WorldSpec world, Group group)
    : state_(std::make_unique<State>()) {
  if (world.rank != group.rank() || world.size != group.size()) {
    throw ConfigError(
        "accelerator",
        fmt::format(
            "the world says rank {} of {}, the group rank {} of {}",
            world.rank,
            world.size,
            group.rank(),
            group.size()));
  }
  state_->options = std::move(options);
  state_->world = std::move(world);
  state_->group = std::move(group);
}

Accelerator::~Accelerator() = default;

int Accelerator::process_index() const {
  return state_->world.rank;
}

int Accelerator::num_processes() const {
  return state_->world.size;
}

int Accelerator::local_process_index() const {
  return state_->world.local_rank;
}

bool Accelerator::is_main_process() const {
  return process_index() == 0;
}

bool Accelerator::is_local_main_process() const {
  return local_process_index() == 0;
}

bool Accelerator::is_last_process() const {
  return process_index() == num_processes() - 1;
}

bool Accelerator::use_distributed() const {
  return num_processes() > 1;
}

std::string Accelerator::distributed_type() const {
  return use_distributed() ? "MULTI_CPU" : "NO";
}

at::Device Accelerator::device() const {
  return at::kCPU;
}

const WorldSpec& Accelerator::world() const {
  return state_->world;
}

Group& Accelerator::group() {
  return state_->group;
}

void Accelerator::add_model(const void* id, Tensors parameters, Tensors buffers) {
  State& state = *state_;
  if (std::any_of(state.models.begin(), state.models.end(), [&](const auto& model) {
        return model.id == id;
      })) {
    return;
  }
  refuse_shared_parameters(state.models, parameters());
  const size_t index = state.models.size();
  // Buckets of different models must not wait for each other: each further model has a group of its
  // own.
  Group group = index == 0 ? state.group : state.group.split(0);
  auto parallel = std::make_shared<DataParallel>(
      parameters(), buffers(), std::move(group), state.options.data_parallel);
  state.models.push_back(
      {id,
       index == 0 ? "" : fmt::format("model_{}.", index),
       std::move(parameters),
       std::move(buffers),
       parallel});
  state.parallels->push_back(std::move(parallel));
}

void Accelerator::add_loader(std::shared_ptr<data::LoaderCore> loader) {
  State& state = *state_;
  if (std::find(state.loaders.begin(), state.loaders.end(), loader) != state.loaders.end()) {
    return;
  }
  loader->shard(
      {.rank = state.world.rank,
       .world = state.world.size,
       .even_batches = state.options.even_batches,
       .split_batches = state.options.split_batches});
  loader->set_observer(state.active);
  state.loaders.push_back(std::move(loader));
}

Optimizer Accelerator::add_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer) {
  State& state = *state_;
  for (const Optimizer& known : state.optimizers) {
    if (&known.inner() == optimizer.get()) {
      return known;
    }
  }
  return state.optimizers.emplace_back(std::move(optimizer), state.parallels);
}

void Accelerator::backward(const at::Tensor& loss) {
  State& state = *state_;
  if (!loss.defined() || loss.numel() != 1) {
    throw ConfigError(
        "backward", "the loss must be one number; take its mean() or sum() before backward");
  }
  if (state.models.size() == 1) {
    state.models[0].parallel->begin_backward();
  }
  try {
    // With a single model a loss that depends on no parameter is this rank's zero; the others wait
    // for it.
    if (loss.requires_grad() || !use_distributed() || state.models.size() != 1) {
      loss.backward();
    }
    for (State::Model& model : state.models) {
      model.parallel->finish_backward();
    }
  } catch (...) {
    for (State::Model& model : state.models) {
      model.parallel->abandon_backward();
    }
    throw;
  }
}

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

at::Tensor Accelerator::gather(const at::Tensor& tensor) {
  return lockstep::gather(state_->group, tensor);
}

at::Tensor Accelerator::gather_for_metrics(const at::Tensor& tensor) {
  const data::BatchInfo* batch = state_->active->current();
  const bool per_sample =
      batch != nullptr && tensor.defined() && tensor.dim() > 0 && tensor.size(0) == batch->rows;
  if (!per_sample) {
    return gather(tensor);
  }
  return lockstep::gather_rows(state_->group, tensor, batch->rows_per_rank, batch->valid_rows);
}

at::Tensor Accelerator::reduce(const at::Tensor& tensor, ReduceOp op) {
  return lockstep::reduce(state_->group, tensor, op);
}

at::Tensor Accelerator::pad_across_processes(
    const at::Tensor& tensor, int64_t dim, double pad_index, bool pad_first) {
  return lockstep::pad_across_processes(state_->group, tensor, dim, pad_index, pad_first);
}

at::Tensor Accelerator::broadcast(const at::Tensor& tensor, int from_process) {
  return lockstep::broadcast(state_->group, tensor, from_process);
}

std::vector<nlohmann::json> Accelerator::gather_object(const nlohmann::json& value) {
  return lockstep::gather_object(state_->group, value);
}

nlohmann::json Accelerator::broadcast_object(const nlohmann::json& value, int from_process) {
  return lockstep::broadcast_object(state_->group, value, from_process);
}

std::ranges::iota_view<int64_t, int64_t> Accelerator::epochs(int64_t count) const {
  const int64_t begin = state_->loaders.empty() ? 0 : state_->loaders.front()->epoch();
  return {std::min(begin, count), count};
}

}  // namespace lockstep
