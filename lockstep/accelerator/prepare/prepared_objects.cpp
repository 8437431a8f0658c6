// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/prepare/prepared_objects.h"

#include <algorithm>

#include <fmt/format.h>

#include "lockstep/accelerator/training_state/saved_optimizer.h"
#include "lockstep/base/error.h"

namespace lockstep::internal {

const PreparedModel* PreparedObjects::find_model(const void* id) const {
  const auto found = std::find_if(
      models.begin(), models.end(), [&](const PreparedModel& model) { return model.id == id; });
  return found == models.end() ? nullptr : &*found;
}

std::set<const void*> PreparedObjects::parameters() const {
  std::set<const void*> all;
  for (const PreparedModel& model : models) {
    for (const NamedTensor& item : model.parameters()) {
      all.insert(item.tensor.unsafeGetTensorImpl());
    }
  }
  return all;
}

const AnyCheckpointable* PreparedObjects::own_state_of(const Optimizer& optimizer) const {
  const auto found = own_optimizer_states.find(&optimizer.inner());
  return found == own_optimizer_states.end() ? nullptr : &found->second;
}

ParameterName PreparedObjects::parameter_names(const char* where) const {
  auto names = std::make_shared<std::map<const void*, std::string>>();
  for (const PreparedModel& model : models) {
    for (const NamedTensor& item : model.parameters()) {
      names->emplace(item.tensor.unsafeGetTensorImpl(), model.prefix + item.name);
    }
  }
  if (sharding) {
    for (const auto& [shard_slice, of] : sharding->slices().all()) {
      names->emplace(shard_slice, names->at(of.parameter.unsafeGetTensorImpl()));
    }
  }
  return [names, where = std::string(where)](const at::Tensor& parameter) {
    const auto found = names->find(parameter.unsafeGetTensorImpl());
    if (found == names->end()) {
      throw ConfigError(
          where,
          "an optimizer has a parameter that belongs to no prepared model; prepare its model, too");
    }
    return found->second;
  };
}

ParameterName PreparedObjects::optimizer_names(const char* where) const {
  ParameterName names = parameter_names(where);
  for (const Optimizer& optimizer : optimizers) {
    if (own_state_of(optimizer) == nullptr) {
      expect_readable_state(
          optimizer.inner(), where, "all processes get the state of one process's optimizer");
    }
    for (const at::Tensor& parameter : optimizer.parameters()) {
      names(parameter);
    }
  }
  return names;
}

bool PreparedObjects::has_optimizer(const Optimizer& optimizer) const {
  return std::find(optimizers.begin(), optimizers.end(), optimizer) != optimizers.end();
}

bool PreparedObjects::is_in_optimizer(const at::Tensor& parameter) const {
  return std::any_of(optimizers.begin(), optimizers.end(), [&](const Optimizer& optimizer) {
    const std::vector<at::Tensor> theirs = optimizer.parameters();
    return std::any_of(theirs.begin(), theirs.end(), [&](const at::Tensor& other) {
      return other.is_same(parameter);
    });
  });
}

bool PreparedObjects::any_step_was_skipped() const {
  return std::any_of(optimizers.begin(), optimizers.end(), [](const Optimizer& optimizer) {
    return optimizer.step_was_skipped();
  });
}

tensor_parallel::TensorParallel* PreparedObjects::division_of(const at::Tensor& parameter) const {
  for (const PreparedModel& model : models) {
    if (model.divided && model.divided->divides(parameter)) {
      return model.divided.get();
    }
  }
  return nullptr;
}

const pipeline::Stage* PreparedObjects::stage() const {
  return context.mesh.pipeline.size() == 1 || models.empty() ? nullptr
                                                             : models.front().pipeline.get();
}

bool PreparedObjects::is_expert(const at::Tensor& parameter) const {
  return std::ranges::any_of(models, [&](const PreparedModel& model) {
    return model.experts != nullptr && model.experts->has(parameter);
  });
}

bool PreparedObjects::is_divided() const {
  return stage() != nullptr || std::ranges::any_of(models, [](const PreparedModel& model) {
           return model.divided != nullptr || model.experts != nullptr;
         });
}

void PreparedObjects::refuse_divided(const char* where, const char* because) const {
  if (is_divided()) {
    throw ConfigError(
        where,
        fmt::format(
            "not with a model that processes divide, since {}; got the mesh {}",
            because,
            mesh_text(context.mesh.shape)));
  }
}

bool PreparedObjects::uses_zero() const {
  const std::optional<ZeroPlugin>& zero = context.options.zero;
  return zero.has_value() && (context.has_replicas() || zero->offloads() || trains_in_16_bits);
}

bool PreparedObjects::shards_parameters() const {
  return sharding != nullptr && sharding->coordinator() != nullptr;
}

bool PreparedObjects::saves_full_state_dict() const {
  return shards_parameters() &&
         context.options.zero->state_dict_type == StateDictType::kFullStateDict;
}

void PreparedObjects::refuse_zero(const char* where, const char* because) const {
  if (uses_zero()) {
    throw ConfigError(
        where,
        fmt::format(
            "cannot be combined with ZeRO: {}; construct the Accelerator without ZeRO, and launch "
            "without --zero-stage",
            because));
  }
}

void PreparedObjects::refuse_shared_parameters(const char* where, const char* because) const {
  if (context.options.shared_parameters && context.is_distributed()) {
    throw ConfigError(
        where,
        fmt::format(
            "cannot be combined with shared_parameters: {}; construct the Accelerator without it",
            because));
  }
}

void PreparedObjects::clear() {
  schedulers.clear();
  optimizers.clear();
  own_optimizer_states.clear();
  models.clear();
  trains_in_16_bits = false;
  sharding.reset();
  for (const auto& loader : loaders) {
    loader->set_observer(nullptr);
  }
  loaders.clear();
}

}  // namespace lockstep::internal
