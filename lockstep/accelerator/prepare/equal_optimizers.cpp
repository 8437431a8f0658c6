// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/prepare/equal_optimizers.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <ATen/Functions.h>

#include "lockstep/accelerator/training_state/non_finite_json.h"
#include "lockstep/accelerator/values/operations.h"

namespace lockstep::internal {
namespace {

/// Returns the state of `root` on every rank. The other ranks' states may be empty.
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
    at::Tensor contiguous = item.tensor.to(at::kCPU).contiguous();  // As on the other ranks.
    item.tensor = group.broadcast(contiguous, root).wait();
  }
  return state;
}

/// Gives every rank the optimizer state of `root`. A rank without a single batch has no state.
/// `own`: the state of an optimizer whose class has state_dict() and load_state_dict(); else null.
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

void make_optimizers_equal(PreparedObjects& objects, const char* where) {
  Group group = objects.context.mesh.replicas;
  const ParameterName names = objects.optimizer_names(where);
  for (Optimizer& optimizer : objects.optimizers) {
    const std::vector<nlohmann::json> steps = gather_object(group, optimizer.steps());
    const auto most = std::max_element(steps.begin(), steps.end());
    const AnyCheckpointable* own = objects.own_state_of(optimizer);
    const auto root = static_cast<int>(most - steps.begin());
    broadcast_optimizer(group, optimizer, own, names, root, where);
    optimizer.set_steps(most->get<int64_t>());
  }
}

}  // namespace lockstep::internal
