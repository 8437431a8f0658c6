// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/prepare/divided_state.h"

#include <limits>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/accumulate.h>

#include "lockstep/comm/byte_collectives.h"
#include "lockstep/comm/fail_together.h"
#include "lockstep/offload/scratch_file.h"

namespace lockstep::internal {
namespace {

/// A parameter of which this process has a part.
struct Divided {
  at::Tensor parameter;
  tensor_parallel::TensorParallel* division;
};

/// Returns the divided parameters by their names in checkpoints.
std::map<std::string, Divided> divided_by_name(const PreparedObjects& objects) {
  std::map<std::string, Divided> divided;
  for (const PreparedModel& model : objects.models) {
    for (const NamedTensor& item : model.parameters()) {
      if (auto* division = objects.division_of(item.tensor)) {
        divided.emplace(model.prefix + item.name, Divided{item.tensor, division});
      }
    }
  }
  return divided;
}

/// Returns the parameter that the optimizer state "fc.weight.exp_avg" is of, if it is divided.
const Divided* owner_of(const std::map<std::string, Divided>& divided, const std::string& state) {
  const auto found = divided.find(state.substr(0, state.rfind('.')));
  return found == divided.end() ? nullptr : &found->second;
}

/// Consecutive elements of the flattened part of a parameter; undefined values: this process has
/// none of them.
struct Piece {
  at::Tensor values = {};
  int64_t begin = 0;
};

/// Returns this process's part of a parameter, or of state of its shape, from the shards of all.
/// All processes that share the part call it.
at::Tensor unsharded(
    const PreparedObjects& objects,
    const at::Tensor& parameter,
    const Piece& piece,
    at::ScalarType dtype) {
  const at::Tensor all =
      at::zeros(parameter.sizes(), at::TensorOptions().dtype(dtype).device(parameter.device()));
  if (piece.values.defined()) {
    all.view({-1})
        .narrow(0, piece.begin, piece.values.numel())
        .copy_(offload::in_memory(piece.values).flatten());
  }
  Group group = objects.context.mesh.replicas;
  return group.all_reduce(all).wait();  // All others have zeros there: exact.
}

/// What the processes must know of a state tensor that some of them have.
struct StateKind {
  at::ScalarType dtype;
  bool is_scalar;
};

/// Returns the names of all processes' tensors, with their kinds.
std::map<std::string, StateKind> kinds_of_all(
    const PreparedObjects& objects, const NamedTensors& own) {
  nlohmann::json listed = nlohmann::json::array();
  for (const NamedTensor& item : own) {
    listed.push_back(
        {item.name, static_cast<int>(item.tensor.scalar_type()), item.tensor.dim() == 0});
  }
  std::map<std::string, StateKind> kinds;
  Group group = objects.context.mesh.replicas;
  for (const std::string& text : all_gather_bytes(group, listed.dump())) {
    for (const nlohmann::json& item : nlohmann::json::parse(text)) {
      kinds.emplace(
          item[0].get<std::string>(),
          StateKind{static_cast<at::ScalarType>(item[1].get<int>()), item[2].get<bool>()});
    }
  }
  return kinds;
}

/// Returns a number that the processes which have it agree on.
at::Tensor agreed_scalar(
    const PreparedObjects& objects, const at::Tensor& own, at::ScalarType dtype) {
  Group group = objects.context.mesh.replicas;
  const at::Tensor all = at::full(
      {1},
      own.defined() ? own.item<double>() : -std::numeric_limits<double>::infinity(),
      at::kDouble);
  return group.all_reduce(all, ReduceOp::kMax).wait()[0].to(dtype);
}

}  // namespace

NamedTensors full_model_tensors(
    const PreparedObjects& objects, const NamedTensors& own, bool keeps) {
  const c10::AutoGradMode no_grad(false);
  NamedTensors all;
  for (const NamedTensor& item : own) {
    tensor_parallel::TensorParallel* const division = objects.division_of(item.tensor);
    const at::Tensor full =
        division ? division->full(item.tensor, item.tensor.detach()) : item.tensor;
    if (keeps) {
      all.push_back({item.name, full});
    }
  }
  return all;
}

NamedTensors own_model_tensors(
    const PreparedObjects& objects, const NamedTensors& current, NamedTensors saved) {
  std::map<std::string, at::Tensor> parameters;
  for (const NamedTensor& item : current) {
    parameters.emplace(item.name, item.tensor);
  }
  for (NamedTensor& item : saved) {
    const auto found = parameters.find(item.name);
    tensor_parallel::TensorParallel* const division =
        found == parameters.end() ? nullptr : objects.division_of(found->second);
    // Another shape is refused later, by name.
    if (division && item.tensor.sizes() == division->full_sizes(found->second)) {
      item.tensor = division->own_part(found->second, item.tensor);
    }
  }
  return saved;
}

NamedTensors full_optimizer_tensors(
    const PreparedObjects& objects, const NamedTensors& own, bool keeps) {
  const std::map<std::string, Divided> divided = divided_by_name(objects);
  NamedTensors all;
  for (const NamedTensor& item : own) {
    const Divided* const owner = owner_of(divided, item.name);
    const bool is_part = owner != nullptr && item.tensor.sizes() == owner->parameter.sizes();
    const at::Tensor full =
        is_part ? owner->division->full(owner->parameter, item.tensor) : item.tensor;
    if (keeps) {
      all.push_back({item.name, full});
    }
  }
  return all;
}

NamedTensors own_optimizer_tensors(const PreparedObjects& objects, NamedTensors saved) {
  const std::map<std::string, Divided> divided = divided_by_name(objects);
  for (NamedTensor& item : saved) {
    const Divided* const owner = owner_of(divided, item.name);
    if (owner != nullptr && item.tensor.sizes() == owner->division->full_sizes(owner->parameter)) {
      item.tensor = owner->division->own_part(owner->parameter, item.tensor);
    }
  }
  return saved;
}

NamedTensors full_sharded_model_tensors(
    const PreparedObjects& objects, const NamedTensors& own, bool keeps) {
  const c10::AutoGradMode no_grad(false);
  const zero::ShardSlices& slices = objects.sharding->slices();
  Group group = objects.context.mesh.replicas;
  NamedTensors all;
  for (const NamedTensor& item : own) {
    at::Tensor part = item.tensor.detach();
    const std::vector<at::Tensor> held = slices.of({item.tensor});
    const bool is_whole = held.size() == 1 && held.front().is_same(item.tensor);  // A buffer.
    if (!is_whole) {
      const std::vector<zero::ShardSlice> saved = slices.saved(item.tensor);
      const Piece piece =
          saved.empty() ? Piece{} : Piece{saved.front().values, saved.front().begin};
      const bool has_master = any_rank(
          group, piece.values.defined() && piece.values.scalar_type() != part.scalar_type());
      part = unsharded(
          objects, item.tensor, piece, has_master ? at::kFloat : item.tensor.scalar_type());
    }
    tensor_parallel::TensorParallel* const division = objects.division_of(item.tensor);
    const at::Tensor full = division ? division->full(item.tensor, part) : part;
    if (keeps) {
      all.push_back({item.name, full});
    }
  }
  return all;
}

NamedTensors full_sharded_optimizer_tensors(
    const PreparedObjects& objects, const NamedTensors& own, bool keeps) {
  const c10::AutoGradMode no_grad(false);
  const zero::ShardSlices& slices = objects.sharding->slices();
  std::map<std::string, at::Tensor> held;
  for (const NamedTensor& item : own) {
    held.emplace(item.name, item.tensor);
  }
  const auto held_as = [&](const std::string& name) {
    const auto found = held.find(name);
    return found == held.end() ? at::Tensor() : found->second;
  };
  std::map<std::string, at::Tensor> parameters;
  for (const PreparedModel& model : objects.models) {
    for (const NamedTensor& item : model.parameters()) {
      parameters.emplace(model.prefix + item.name, item.tensor);
    }
  }
  NamedTensors all;
  for (const auto& [name, kind] : kinds_of_all(objects, own)) {
    const at::Tensor values = held_as(name);
    const at::Tensor& parameter = parameters.at(name.substr(0, name.rfind('.')));
    at::Tensor full;
    if (kind.is_scalar) {
      full = agreed_scalar(objects, values, kind.dtype);
    } else {
      const std::vector<at::Tensor> shard = slices.of({parameter});
      const Piece piece =
          values.defined() ? Piece{values, slices.find(shard.at(0))->begin} : Piece{};
      const at::Tensor part = unsharded(objects, parameter, piece, kind.dtype);
      tensor_parallel::TensorParallel* const division = objects.division_of(parameter);
      full = division ? division->full(parameter, part) : part;
    }
    if (keeps) {
      all.push_back({name, full});
    }
  }
  return all;
}

int64_t full_bytes(const PreparedObjects& objects, const NamedTensors& own) {
  int64_t bytes = 0;
  for (const NamedTensor& item : own) {
    tensor_parallel::TensorParallel* const division = objects.division_of(item.tensor);
    const int64_t elements =
        division ? c10::multiply_integers(division->full_sizes(item.tensor)) : item.tensor.numel();
    bytes += elements * static_cast<int64_t>(item.tensor.element_size());
  }
  return bytes;
}

}  // namespace lockstep::internal
