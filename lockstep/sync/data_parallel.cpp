// SPDX-License-Identifier: Apache-2.0
#include "lockstep/sync/data_parallel.h"

#include <utility>

#include <fmt/format.h>

#include <c10/core/ScalarType.h>

#include "lockstep/base/error.h"
#include "lockstep/sync/agreement.h"
#include "lockstep/sync/reducer.h"

namespace lockstep {

DataParallel::DataParallel(
    const NamedTensors& parameters,
    const NamedTensors& buffers,
    Group group,
    DataParallelOptions options,
    const flat::CommDtypes& comm_dtypes)
    : comm_hook_(options.comm_hook.type) {
  if (options.cap_bytes < 1 || options.first_cap_bytes < 1) {
    throw ConfigError(
        "data_parallel",
        fmt::format(
            "a bucket needs at least one byte; got cap_bytes={}, first_cap_bytes={}",
            options.cap_bytes,
            options.first_cap_bytes));
  }
  check_options(options.comm_hook);
  if (!comm_dtypes.parameters.empty() && options.comm_hook.type != CommHookType::kNone) {
    throw ConfigError(
        "data_parallel",
        fmt::format(
            "the comm hook {} sets the communication dtype of all gradients; got parameters with "
            "communication dtype {}, too; remove one of them",
            name_of(options.comm_hook.type),
            c10::toString(comm_dtypes.dtype)));
  }
  everything_ = broadcast_initial_values(group, parameters, buffers);
  reducer_ = std::make_shared<Reducer>(
      parameters,
      options.broadcast_buffers ? tensors_of(buffers) : std::vector<at::Tensor>(),
      std::move(group),
      options,
      comm_dtypes);
  reducer_->watch();
}

DataParallel::~DataParallel() = default;

void DataParallel::begin_backward() {
  reducer_->begin();
}

void DataParallel::finish_backward() {
  reducer_->finish();
}

void DataParallel::abandon_backward() noexcept {
  reducer_->abandon();
}

void DataParallel::set_sync(bool sync) {
  reducer_->set_sync(sync);
}

void DataParallel::set_facts(RankFacts facts) {
  reducer_->set_facts(std::move(facts));
}

bool DataParallel::has_gradients() const {
  return reducer_->has_gradients();
}

void DataParallel::check_alive() const {
  reducer_->group().check_alive();
}

void DataParallel::set_local(bool local) {
  reducer_->set_local(local);
}

CommHookState DataParallel::hook_state() const {
  const CommHook* hook = reducer_->hook();
  return hook != nullptr ? hook->state() : CommHookState{};
}

void DataParallel::check_hook_state(const CommHookState& state) const {
  if (const CommHook* hook = reducer_->hook()) {
    hook->check_state(state);
  }
}

void DataParallel::load_hook_state(const CommHookState& state) {
  if (CommHook* hook = reducer_->hook()) {
    hook->load_state(state);
  }
}

size_t DataParallel::bucket_count() const {
  return reducer_->bucket_count();
}

}  // namespace lockstep
