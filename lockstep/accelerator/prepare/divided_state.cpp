// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/prepare/divided_state.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/accumulate.h>

#include "lockstep/comm/byte_collectives.h"
#include "lockstep/comm/fail_together.h"
#include "lockstep/offload/scratch_file.h"
#include "lockstep/tensor_parallel/divided_layout.h"

namespace lockstep::internal {
namespace {

using ByName = std::map<std::string, at::Tensor>;

ByName by_name(const NamedTensors& tensors) {
  ByName named;
  for (const NamedTensor& item : tensors) {
    named.emplace(item.name, item.tensor);
  }
  return named;
}

/// Returns all parameters by their names in checkpoints.
ByName parameters_of(const PreparedObjects& objects) {
  ByName parameters;
  for (const PreparedModel& model : objects.models) {
    for (const NamedTensor& item : model.parameters()) {
      parameters.emplace(model.prefix + item.name, item.tensor);
    }
  }
  return parameters;
}

/// Returns the tensor of that name; an undefined one without it.
at::Tensor named(const ByName& tensors, const std::string& name) {
  const auto found = tensors.find(name);
  return found == tensors.end() ? at::Tensor() : found->second;
}

/// Returns the name of the parameter that the optimizer state "fc.weight.exp_avg" belongs to.
std::string parameter_name_of(const std::string& state) {
  return state.substr(0, state.rfind('.'));
}

/// Returns whether this process has some rows of the experts that `parameter` holds, and others of
/// its line the rest.
bool is_stacked(const PreparedObjects& objects, const at::Tensor& parameter) {
  return parameter.defined() &&
         std::ranges::any_of(objects.models, [&](const PreparedModel& model) {
           return model.experts != nullptr &&
                  model.experts->stacked.contains(parameter.unsafeGetTensorImpl());
         });
}

/// Returns how the rows of all experts are divided.
tensor_parallel::DividedLayout rows_of_experts(
    const PreparedObjects& objects, const at::Tensor& parameter) {
  std::vector<int64_t> full_sizes = parameter.sizes().vec();
  const int ranks = objects.context.mesh.experts.size();
  full_sizes.front() *= ranks;
  return {std::move(full_sizes), 0, {}, ranks};
}

/// Returns `own` in full, if it is a part of `parameter` or of state of its shape. Collective in
/// the tp line, or in the ep line.
at::Tensor in_full(
    const PreparedObjects& objects, const at::Tensor& parameter, const at::Tensor& own) {
  if (is_stacked(objects, parameter)) {
    Group line = objects.context.mesh.experts;
    return own.sizes() == parameter.sizes() ? rows_of_experts(objects, parameter).full(own, line)
                                            : own;
  }
  tensor_parallel::TensorParallel* const division =
      parameter.defined() ? objects.division_of(parameter) : nullptr;
  const bool is_part = division != nullptr && own.sizes() == parameter.sizes();
  return is_part ? division->full(parameter, own) : own;
}

/// Returns this process's part of `full`, if it has the full shape of a divided `parameter`.
/// load_state refuses another shape later, by name.
at::Tensor in_part(
    const PreparedObjects& objects, const at::Tensor& parameter, const at::Tensor& full) {
  if (is_stacked(objects, parameter)) {
    const tensor_parallel::DividedLayout layout = rows_of_experts(objects, parameter);
    return full.sizes() == at::IntArrayRef(layout.full_sizes())
               ? layout.own_part(full, objects.context.mesh.experts.rank())
               : full;
  }
  const tensor_parallel::TensorParallel* const division =
      parameter.defined() ? objects.division_of(parameter) : nullptr;
  const bool is_full = division != nullptr && full.sizes() == division->full_sizes(parameter);
  return is_full ? division->own_part(parameter, full) : full;
}

/// Returns the tensors of all ranks of `line`, each name once, on the ranks that `keep` them. A
/// copy under the same name, of a tied parameter, is equal. Collective: each is broadcast to the
/// line.
NamedTensors of_whole_line(Group line, const NamedTensors& own, at::Device device, bool keeps) {
  const c10::AutoGradMode no_grad(false);
  nlohmann::json listed = nlohmann::json::array();
  for (const NamedTensor& item : own) {
    listed.push_back(
        {item.name,
         static_cast<int>(item.tensor.scalar_type()),
         item.tensor.sizes().vec(),
         item.tensor.is_cpu()});
  }
  const auto received = [device](const nlohmann::json& item) {
    return at::empty(
        item[2].get<std::vector<int64_t>>(),
        at::TensorOptions()
            .dtype(static_cast<at::ScalarType>(item[1].get<int>()))
            .device(item[3].get<bool>() ? at::Device(at::kCPU) : device));
  };
  NamedTensors all;
  std::set<std::string> names;
  const std::vector<std::string> of_ranks = all_gather_bytes(line, listed.dump());
  for (int rank = 0; rank < line.size(); ++rank) {
    size_t place = 0;
    for (const nlohmann::json& item : nlohmann::json::parse(of_ranks[static_cast<size_t>(rank)])) {
      const at::Tensor tensor =
          rank == line.rank() ? own[place++].tensor.detach().contiguous() : received(item);
      const auto name = item[0].get<std::string>();
      if (!names.insert(name).second) {
        continue;
      }
      line.broadcast(tensor, rank).wait();
      if (keeps) {
        all.push_back({name, tensor});
      }
    }
  }
  return all;
}

/// Appends those of `experts`, which processes divide, and the others of their line.
void append_experts(
    const PreparedObjects& objects, const NamedTensors& experts, bool keeps, NamedTensors& all) {
  const Group& line = objects.context.mesh.experts;
  if (line.size() == 1) {
    return;
  }
  for (NamedTensor& item : of_whole_line(line, experts, objects.context.device, keeps)) {
    all.push_back(std::move(item));
  }
}

/// Returns whether another process has the expert's parameter of that name in checkpoints.
bool is_of_other_process(const PreparedObjects& objects, const std::string& name) {
  return std::ranges::any_of(objects.models, [&](const PreparedModel& model) {
    return model.experts != nullptr && name.starts_with(model.prefix) &&
           model.experts->others.contains(name.substr(model.prefix.size()));
  });
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
  Group group = objects.replicas_of(parameter);
  return group.all_reduce(all).wait();  // All others have zeros there: exact.
}

/// Describes a state tensor to processes that do not have it.
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
    const PreparedObjects& objects,
    const at::Tensor& parameter,
    const at::Tensor& own,
    at::ScalarType dtype) {
  Group group = objects.replicas_of(parameter);
  const at::Tensor all = at::full(
      {1},
      own.defined() ? own.item<double>() : -std::numeric_limits<double>::infinity(),
      at::kDouble);
  return group.all_reduce(all, ReduceOp::kMax).wait()[0].to(dtype);
}

/// Joins what the processes of a pipeline have of their stages. Does nothing without pp.
class StageJoin {
 public:
  /// Collective in the pipeline.
  StageJoin(const PreparedObjects& objects, bool keeps)
      : stage_(objects.stage()),
        group_(objects.context.mesh.pipeline),
        device_(objects.context.device),
        keeps_(keeps),
        any_keeps_(stage_ != nullptr ? any_rank(group_, keeps) : keeps) {}

  /// Returns whether a process of the pipeline needs this process's tensors.
  bool keeps() const { return any_keeps_; }

  /// Returns the tensors of all stages; none if this process does not need them. Collective.
  NamedTensors joined(NamedTensors own) {
    if (stage_ == nullptr || !any_keeps_) {
      return own;
    }
    return of_whole_line(group_, own, device_, keeps_);
  }

 private:
  const pipeline::Stage* stage_;
  Group group_;
  at::Device device_;
  bool keeps_;
  bool any_keeps_;
};

}  // namespace

std::vector<std::string> names_of_all_parts(
    const PreparedObjects& objects, const std::vector<std::string>& own) {
  std::vector<std::string> all = own;
  const comm::MeshGroups& mesh = objects.context.mesh;
  for (Group group : {mesh.experts, mesh.pipeline}) {
    if (group.size() == 1) {
      continue;
    }
    std::set<std::string> names;
    for (const std::string& theirs : all_gather_bytes(group, nlohmann::json(all).dump())) {
      names.merge(nlohmann::json::parse(theirs).get<std::set<std::string>>());
    }
    all.assign(names.begin(), names.end());
  }
  return all;
}

NamedTensors full_model_tensors(
    const PreparedObjects& objects, const NamedTensors& own, bool keeps) {
  const c10::AutoGradMode no_grad(false);
  if (objects.shards_parameters() && objects.is_divided()) {
    objects.sharding->write_back();
    return full_sharded_model_tensors(objects, own, keeps, /*with_masters=*/false);
  }
  StageJoin stages(objects, keeps);
  const NamedTensors named_own =
      objects.stage() != nullptr ? objects.stage()->with_full_names(own) : own;
  NamedTensors all;
  NamedTensors experts;
  for (const NamedTensor& item : named_own) {
    if (objects.is_expert(item.tensor) && !is_stacked(objects, item.tensor)) {
      experts.push_back(item);
      continue;
    }
    const at::Tensor full = in_full(objects, item.tensor, item.tensor);
    if (stages.keeps()) {
      all.push_back({item.name, full});
    }
  }
  append_experts(objects, experts, stages.keeps(), all);
  return stages.joined(std::move(all));
}

NamedTensors own_model_tensors(
    const PreparedObjects& objects, const NamedTensors& current, NamedTensors saved) {
  std::erase_if(saved, [&](const NamedTensor& item) {
    return objects.stage() != nullptr && objects.stage()->is_elsewhere(item.name);
  });
  const ByName parameters = by_name(current);
  std::erase_if(saved, [&](const NamedTensor& item) {
    // Names within a model have no prefix.
    return !parameters.contains(item.name) &&
           std::ranges::any_of(objects.models, [&](const PreparedModel& model) {
             return model.experts != nullptr && model.experts->others.contains(item.name);
           });
  });
  for (NamedTensor& item : saved) {
    item.tensor = in_part(objects, named(parameters, item.name), item.tensor);
  }
  return saved;
}

NamedTensors full_optimizer_tensors(
    const PreparedObjects& objects, const NamedTensors& own, bool keeps) {
  const ByName parameters = parameters_of(objects);
  StageJoin stages(objects, keeps);
  NamedTensors all;
  NamedTensors experts;
  for (const NamedTensor& item : own) {
    const at::Tensor parameter = named(parameters, parameter_name_of(item.name));
    if (parameter.defined() && objects.is_expert(parameter) && !is_stacked(objects, parameter)) {
      experts.push_back(item);
      continue;
    }
    const at::Tensor full = in_full(objects, parameter, item.tensor);
    if (stages.keeps()) {
      all.push_back({item.name, full});
    }
  }
  append_experts(objects, experts, stages.keeps(), all);
  return stages.joined(std::move(all));
}

NamedTensors own_optimizer_tensors(const PreparedObjects& objects, NamedTensors saved) {
  std::erase_if(saved, [&](const NamedTensor& item) {
    return objects.stage() != nullptr &&
           objects.stage()->is_elsewhere(parameter_name_of(item.name));
  });
  const ByName parameters = parameters_of(objects);
  std::erase_if(saved, [&](const NamedTensor& item) {
    const std::string parameter = parameter_name_of(item.name);
    return !parameters.contains(parameter) && is_of_other_process(objects, parameter);
  });
  for (NamedTensor& item : saved) {
    item.tensor = in_part(objects, named(parameters, parameter_name_of(item.name)), item.tensor);
  }
  return saved;
}

NamedTensors full_sharded_model_tensors(
    const PreparedObjects& objects, const NamedTensors& own, bool keeps, bool with_masters) {
  const c10::AutoGradMode no_grad(false);
  const zero::ShardSlices& slices = objects.sharding->slices();
  StageJoin stages(objects, keeps);
  NamedTensors all;
  NamedTensors experts;
  for (const NamedTensor& item : own) {
    at::Tensor part = item.tensor.detach();
    const std::vector<at::Tensor> held = slices.of({item.tensor});
    const bool is_whole = held.size() == 1 && held.front().is_same(item.tensor);  // A buffer.
    if (!is_whole) {
      const std::vector<zero::ShardSlice> saved = slices.saved(item.tensor);
      const Piece piece =
          saved.empty() ? Piece{} : Piece{saved.front().values, saved.front().begin};
      const bool has_master =
          with_masters &&
          any_rank(
              objects.replicas_of(item.tensor),
              piece.values.defined() && piece.values.scalar_type() != part.scalar_type());
      part = unsharded(
          objects, item.tensor, piece, has_master ? at::kFloat : item.tensor.scalar_type());
    }
    if (objects.is_expert(item.tensor) && !is_stacked(objects, item.tensor)) {
      experts.push_back({item.name, part});
      continue;
    }
    const at::Tensor full = in_full(objects, item.tensor, part);
    if (stages.keeps()) {
      all.push_back({item.name, full});
    }
  }
  append_experts(objects, experts, stages.keeps(), all);
  return stages.joined(std::move(all));
}

NamedTensors full_sharded_optimizer_tensors(
    const PreparedObjects& objects, const NamedTensors& own, bool keeps) {
  const c10::AutoGradMode no_grad(false);
  const zero::ShardSlices& slices = objects.sharding->slices();
  const ByName held = by_name(own);
  const ByName parameters = parameters_of(objects);
  StageJoin stages(objects, keeps);
  NamedTensors all;
  NamedTensors experts;
  for (const auto& [name, kind] : kinds_of_all(objects, own)) {
    const at::Tensor values = named(held, name);
    if (!parameters.contains(parameter_name_of(name)) &&
        is_of_other_process(objects, parameter_name_of(name))) {
      continue;
    }
    const at::Tensor& parameter = parameters.at(parameter_name_of(name));
    at::Tensor full;
    if (kind.is_scalar) {
      full = agreed_scalar(objects, parameter, values, kind.dtype);
    } else {
      const Piece piece = values.defined()
                              ? Piece{values, slices.find(slices.of({parameter}).at(0))->begin}
                              : Piece{};
      full = in_full(objects, parameter, unsharded(objects, parameter, piece, kind.dtype));
    }
    if (objects.is_expert(parameter) && !is_stacked(objects, parameter)) {
      experts.push_back({name, full});
    } else if (stages.keeps()) {
      all.push_back({name, full});
    }
  }
  append_experts(objects, experts, stages.keeps(), all);
  return stages.joined(std::move(all));
}

int64_t full_bytes(const PreparedObjects& objects, const NamedTensors& own) {
  int64_t bytes = 0;
  for (const NamedTensor& item : own) {
    tensor_parallel::TensorParallel* const division = objects.division_of(item.tensor);
    const int64_t elements =
        division ? c10::multiply_integers(division->full_sizes(item.tensor)) : item.tensor.numel();
    const int parts = objects.is_expert(item.tensor) ? objects.context.mesh.experts.size() : 1;
    bytes += parts * elements * static_cast<int64_t>(item.tensor.element_size());
  }
  return bytes;
}

}  // namespace lockstep::internal
