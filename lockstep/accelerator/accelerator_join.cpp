// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include <ATen/Functions.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/accelerator_state.h"
#include "lockstep/accelerator/training_state/non_finite_json.h"
#include "lockstep/accelerator/values/operations.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/optim/state/optimizer_state.h"

namespace lockstep {
namespace {

/// Sets even_batches of all loaders, and back where it ends.
class EvenBatches {
 public:
  EvenBatches(
      const std::vector<std::shared_ptr<data::LoaderCore>>& loaders, std::optional<bool> even) {
    for (const auto& loader : loaders) {
      if (even && loader->spec().even_batches != *even && !loader->dispatches()) {
        loader->set_even_batches(*even);
        changed_.push_back(loader);
      } else if (even && loader->dispatches()) {
        log_warning(
            "join_uneven_inputs: a loader that dispatches batches keeps its even_batches, since "
            "all its processes end together");
      }
    }
    even_ = even.value_or(false);
  }
  ~EvenBatches() {
    for (const auto& loader : changed_) {
      try {
        loader->set_even_batches(!even_);
      } catch (const std::exception& error) {
        log_error(error.what());
      }
    }
  }
  EvenBatches(const EvenBatches&) = delete;
  EvenBatches& operator=(const EvenBatches&) = delete;

 private:
  std::vector<std::shared_ptr<data::LoaderCore>> changed_;
  bool even_ = false;
};

/// `root`'s values and tensors, on every rank; the others' may be empty.
ObjectState broadcast_state(Group& group, ObjectState state, int root) {
  nlohmann::json head = nlohmann::json::array();
  for (const NamedTensor& item : state.tensors) {
    head.push_back(
        {{"name", item.name},
         {"sizes", item.tensor.sizes().vec()},
         {"dtype", static_cast<int>(item.tensor.scalar_type())}});
  }
  head = broadcast_object(
      group, {{"tensors", head}, {"values", without_non_finite(state.values)}}, root);
  if (group.rank() != root) {
    state = ObjectState(with_non_finite(head.at("values")));
    for (const nlohmann::json& item : head.at("tensors")) {
      state.tensors.push_back(
          {item.at("name").get<std::string>(),
           at::empty(
               item.at("sizes").get<std::vector<int64_t>>(),
               static_cast<at::ScalarType>(item.at("dtype").get<int>()))});
    }
  }
  for (NamedTensor& item : state.tensors) {
    at::Tensor contiguous = item.tensor.to(at::kCPU).contiguous();  // As those who have none.
    item.tensor = group.broadcast(contiguous, root).wait();
  }
  return state;
}

/// Gives every rank `root`'s optimizer state. A rank without a single batch has none at all. `own`:
/// of an optimizer whose class has state_dict() and load_state_dict(); else null.
void broadcast_optimizer(
    Group& group,
    const Optimizer& optimizer,
    const AnyCheckpointable* own,
    const ParameterName& names,
    int root,
    const char* where) {
  torch::optim::Optimizer& inner = optimizer.inner();
  const bool mine = group.rank() == root;
  ObjectState state;
  if (mine) {
    state = own != nullptr
                ? own->state_dict()
                : ObjectState(optimizer_settings(inner), optimizer_tensors(inner, names));
  }
  state = broadcast_state(group, std::move(state), root);
  if (mine) {
    return;
  }
  if (own != nullptr) {
    own->load_state_dict(state);
  } else {
    check_optimizer(inner, names, state.tensors, state.values, where)();
  }
}

}  // namespace

void Accelerator::make_optimizers_equal(const char* where) {
  State& state = *state_;
  const ParameterName names = state.optimizer_names(where);
  for (Optimizer& optimizer : state.optimizers) {
    const std::vector<nlohmann::json> steps =
        lockstep::gather_object(state.group, optimizer.steps());
    const auto most = std::max_element(steps.begin(), steps.end());
    const AnyCheckpointable* own = state.own_state_of(optimizer);
    const auto root = static_cast<int>(most - steps.begin());
    broadcast_optimizer(state.group, optimizer, own, names, root, where);
    optimizer.set_steps(most->get<int64_t>());
  }
}

void Accelerator::join_uneven_inputs(const std::function<void()>& body) {
  join_uneven_inputs(JoinUnevenInputs{}, body);
}

void Accelerator::join_uneven_inputs(
    const JoinUnevenInputs& options, const std::function<void()>& body) {
  State& state = *state_;
  if (state.joining || !state.local_sgds.empty()) {
    throw ConfigError(
        "join_uneven_inputs",
        state.joining ? "inside another one" : "does not go with LocalSgd; finish() it first");
  }
  refuse_shared_parameters(
      "join_uneven_inputs", "a process without data is not there to update its share");
  refuse_zero("join_uneven_inputs", "a process without data is not there to update its share");
  LoopState& loop = *state.loop;
  if (loop.finite->policy() != NonFinitePolicy::kIgnore && use_distributed()) {
    throw ConfigError(
        "join_uneven_inputs",
        "does not go with a NonFinitePolicy: all processes would have to agree on every "
        "update, and those without data make none; use NonFinitePolicy::kIgnore");
  }
  state.optimizer_names("join_uneven_inputs");  // Needed at the end, and missed now.
  const EvenBatches even(state.loaders, options.even_batches);
  loop.update_scaler_if_due();
  // Averaged gradients overflow on all processes or on none, and who has no data is not there to
  // agree.
  const auto agree_among = [&](Group group) {
    if (loop.scaler) {
      loop.scaler->set_group(std::move(group));
    }
  };
  state.joining = true;
  agree_among(Group());
  const GradientScope after([&state, &agree_among] {
    state.joining = false;
    agree_among(state.group);
  });
  run_joined(state.parallels, body, options.join);
  loop.update_scaler_if_due();
  if (!use_distributed()) {
    return;
  }
  // Processes have seen different numbers of micro-steps: all begin a new group.
  loop.begin_anew();
  clear_gradients();
  make_optimizers_equal("join_uneven_inputs");
  if (loop.scaler) {
    // Updates that were left out count here, not in optimizers' steps: ranks are asked for both.
    const std::vector<nlohmann::json> calls = lockstep::gather_object(state.group, loop.updates);
    const auto most = std::max_element(calls.begin(), calls.end());
    loop.scaler->load_state(
        broadcast_object(loop.scaler->state(), static_cast<int>(most - calls.begin())));
    loop.updates = most->get<int64_t>();
  }
  for (Scheduler& scheduler : state.schedulers) {
    std::vector<nlohmann::json> states = lockstep::gather_object(state.group, scheduler.state());
    const auto most = std::max_element(states.begin(), states.end(), [](auto& a, auto& b) {
      return a.at("steps").template get<int64_t>() < b.at("steps").template get<int64_t>();
    });
    scheduler.check_state(*most, "join_uneven_inputs")();
  }
}

}  // namespace lockstep
