// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/training_state/sharded_state.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/base/host/machine.h"
#include "lockstep/comm/tensor/sharded_param.h"
#include "lockstep/storage/safetensors/slices.h"
#include "lockstep/storage/state_files.h"

namespace lockstep::internal {
namespace {

/// Returns whether ranks save their slices of a tensor, and not the tensor.
bool is_sliced(const at::Tensor& tensor, const zero::Sharding& sharding) {
  return comm::is_sharded_param(tensor) || sharding.slices().has_masters_of(tensor);
}

/// Adds this rank's part of the set of tensors `stem`.
void add_part(
    checkpoint::Contents& contents,
    const std::string& stem,
    const zero::Sharding& sharding,
    NamedTensors own,
    const storage::Slices& slices,
    const SaveDisk& disk) {
  std::map<std::string, std::string> metadata;
  if (disk.on_each_host) {
    metadata[storage::kPartKey] = storage::render_slices(stem, slices);
    contents.add_tensors(
        storage::state_files::part_of_rank(stem, sharding.group().rank()),
        std::move(own),
        std::move(metadata));
    return;
  }
  if (!slices.empty()) {
    metadata[storage::kSlicesKey] = storage::render_slices(stem, slices);
  }
  contents.add_tensors(
      fmt::format(
          "{}-{:05}-of-{:05}.safetensors",
          stem,
          sharding.group().rank() + 1,
          sharding.group().size()),
      std::move(own),
      std::move(metadata));
}

/// Returns this rank's slices of the trained parameters, by the parameters' names.
std::map<std::string, zero::ShardSlice> trained_slices(
    const zero::Sharding& sharding, const ParameterName& names) {
  std::map<std::string, zero::ShardSlice> shard_slices;
  for (const auto& [values, shard_slice] : sharding.slices().all()) {
    if (shard_slice.values.requires_grad()) {
      shard_slices[names(shard_slice.parameter)] = shard_slice;
    }
  }
  return shard_slices;
}

[[noreturn]] void refuse_sharding(
    const std::string& path, const std::string& name, const std::string& saved, int64_t begin) {
  throw CheckpointError(
      path,
      fmt::format(
          "was sharded differently; this file has {}, this rank expects a slice that begins at "
          "element {}; load it with the same ZeRO stage, bucket size and number of ranks as the "
          "save",
          saved,
          begin),
      name);
}

/// Compares where each rank's slice begins. All ranks' beginnings determine how a parameter was
/// sharded, also if its state has no slices: row and column sums exist only on ranks with a slice.
void check_beginnings(
    const std::string& path,
    const std::map<std::string, zero::ShardSlice>& shard_slices,
    const storage::Slices& slices) {
  for (const auto& [name, shard_slice] : shard_slices) {
    const auto saved = slices.find(name);
    if (saved == slices.end()) {
      refuse_sharding(path, name, "no slice of this parameter", shard_slice.begin);
    }
    if (saved->second.begin != shard_slice.begin ||
        shard_slice.parameter.sizes() != at::IntArrayRef(saved->second.shape)) {
      refuse_sharding(
          path,
          name,
          fmt::format(
              "a slice of [{1}] that begins at element {0}",
              saved->second.begin,
              fmt::join(saved->second.shape, ", ")),
          shard_slice.begin);
    }
  }
}

struct SavedPart {
  std::string path;
  NamedTensors tensors;
  storage::Slices slices;
};

/// Reads the part of `stem` that this rank saved on its host. Throws CheckpointError if it was
/// sharded differently. `shard_slices`: this rank's, by parameter name. `parameter_of`: returns the
/// name of a tensor's parameter.
SavedPart read_part(
    const checkpoint::Reader& reader,
    const std::string& stem,
    const zero::Sharding& sharding,
    const std::map<std::string, zero::ShardSlice>& shard_slices,
    const std::function<std::string(const std::string& name)>& parameter_of) {
  const std::string file = storage::state_files::part_of_rank(stem, sharding.group().rank());
  const std::string path = (reader.path() / file).string();
  if (!reader.has(file)) {
    throw CheckpointError(
        path,
        fmt::format(
            "is not on host {}: each host saved only the files of its own ranks; start the ranks "
            "on the hosts that saved the checkpoint, or copy the missing file to this host",
            describe_machine().system.host));
  }
  const auto metadata = reader.open_tensors(file).metadata();
  const auto text = metadata.find(storage::kPartKey);
  if (text == metadata.end()) {
    throw CheckpointError(
        path,
        fmt::format(
            "has no metadata '{}', which lists its shard slices; load a file that save_state wrote",
            storage::kPartKey));
  }
  storage::Slices slices = storage::parse_slices(path, text->second);
  NamedTensors own = reader.tensors(file);
  for (const NamedTensor& item : own) {
    const auto slice = slices.find(item.name);
    const auto shard_slice = shard_slices.find(parameter_of(item.name));
    if (slice == slices.end() || shard_slice == shard_slices.end()) {
      continue;  // A count; or of another model, which is refused later.
    }
    const zero::ShardSlice& here = shard_slice->second;
    if (here.parameter.sizes() != at::IntArrayRef(slice->second.shape) ||
        here.begin != slice->second.begin || here.values.numel() != item.tensor.numel()) {
      throw CheckpointError(
          path,
          fmt::format(
              "was sharded differently; this file has a slice of {} elements that begins at "
              "element {}, this rank expects one of {} that begins at element {}; load it with the "
              "same ZeRO stage, bucket size and number of ranks as the save",
              item.tensor.numel(),
              slice->second.begin,
              here.values.numel(),
              here.begin),
          item.name);
    }
  }
  return {path, std::move(own), std::move(slices)};
}

}  // namespace

bool is_in_parts(const checkpoint::Reader& reader, const std::string& stem) {
  const std::string beginning = stem + "_part_of_rank_";
  const std::vector<std::string> files = reader.files();
  return std::any_of(files.begin(), files.end(), [&](const std::string& file) {
    return file.starts_with(beginning);
  });
}

NamedTensors own_optimizer_part(
    const checkpoint::Reader& reader,
    const std::string& stem,
    const zero::Sharding& sharding,
    const ParameterName& names) {
  const std::map<std::string, zero::ShardSlice> shard_slices = trained_slices(sharding, names);
  SavedPart part = read_part(reader, stem, sharding, shard_slices, [](const std::string& name) {
    return name.substr(0, name.rfind('.'));
  });
  check_beginnings(part.path, shard_slices, part.slices);
  return std::move(part.tensors);
}

ModelShards own_model_part(
    const checkpoint::Reader& reader,
    const std::string& stem,
    const NamedTensors& current,
    const zero::Sharding& sharding,
    bool from_fp32_weights) {
  ModelShards parts;
  std::map<std::string, zero::ShardSlice> shard_slices;
  for (const NamedTensor& item : current) {
    if (!is_sliced(item.tensor, sharding)) {
      parts.current.push_back(item);
      continue;
    }
    for (zero::ShardSlice& shard_slice : sharding.slices().saved(item.tensor)) {
      parts.current.push_back({item.name, shard_slice.values});
      if (sharding.slices().is_quantized(item.tensor)) {
        parts.quantized.push_back(shard_slice);
      }
      shard_slices[item.name] = std::move(shard_slice);
    }
  }
  parts.saved = read_part(reader, stem, sharding, shard_slices, [](const std::string& name) {
                  return name;
                }).tensors;
  for (NamedTensor& item : parts.saved) {
    const auto shard_slice = shard_slices.find(item.name);
    if (!from_fp32_weights && shard_slice != shard_slices.end()) {
      const at::ScalarType saved = item.tensor.scalar_type();
      item.tensor = item.tensor.to(shard_slice->second.parameter.scalar_type()).to(saved);
    }
  }
  for (NamedTensor& item : reader.tensors(storage::state_files::unsharded(stem))) {
    parts.saved.push_back(std::move(item));
  }
  return parts;
}

void add_sharded_optimizer(
    checkpoint::Contents& contents,
    const std::string& stem,
    torch::optim::Optimizer& optimizer,
    const zero::Sharding& sharding,
    const ParameterName& names,
    const SaveDisk& disk) {
  // A rank has at most one slice of a parameter, so the slice has the parameter's name.
  std::map<std::string, zero::ShardSlice> shard_slices;
  const ParameterName name_of = [&](const at::Tensor& shard_slice) {
    std::string name = names(shard_slice);
    shard_slices[name] = *sharding.slices().find(shard_slice);
    return name;
  };
  NamedTensors own;
  storage::Slices slices;
  for (NamedTensor& item : optimizer_tensors(optimizer, name_of)) {
    const zero::ShardSlice& shard_slice =
        shard_slices.at(item.name.substr(0, item.name.rfind('.')));
    if (item.tensor.dim() == 1) {
      slices[item.name] = {
          .shape = shard_slice.parameter.sizes().vec(), .begin = shard_slice.begin};
    } else if (shard_slice.begin > 0 && !disk.on_each_host) {
      continue;  // A count, which the rank with the first element saves.
    }
    own.push_back(std::move(item));
  }
  if (disk.on_each_host) {
    for (const auto& [name, shard_slice] : trained_slices(sharding, names)) {
      slices[name] = {.shape = shard_slice.parameter.sizes().vec(), .begin = shard_slice.begin};
    }
  }
  add_part(contents, stem, sharding, std::move(own), slices, disk);
}

void add_sharded_model(
    checkpoint::Contents& contents,
    const std::string& stem,
    const NamedTensors& tensors,
    const zero::Sharding& sharding,
    const SaveDisk& disk) {
  NamedTensors own;
  NamedTensors unsharded;
  storage::Slices slices;
  for (const NamedTensor& item : tensors) {
    if (!is_sliced(item.tensor, sharding)) {
      if (disk.is_writer) {
        (disk.on_each_host ? unsharded : own).push_back(item);
      }
      continue;
    }
    for (const zero::ShardSlice& shard_slice : sharding.slices().saved(item.tensor)) {
      slices[item.name] = {.shape = item.tensor.sizes().vec(), .begin = shard_slice.begin};
      own.push_back({item.name, shard_slice.values.detach()});
    }
  }
  if (disk.on_each_host && disk.is_writer) {
    contents.add_tensors(storage::state_files::unsharded(stem), std::move(unsharded));
  }
  add_part(contents, stem, sharding, std::move(own), slices, disk);
}

ModelShards own_model_shards(
    const NamedTensors& current,
    NamedTensors saved,
    const zero::Sharding& sharding,
    bool from_fp32_weights) {
  std::map<std::string, at::Tensor> values;
  for (NamedTensor& item : saved) {
    values[item.name] = std::move(item.tensor);
  }
  ModelShards shard_slices;
  for (const NamedTensor& item : current) {
    const auto found = values.find(item.name);
    if (found == values.end() || !is_sliced(item.tensor, sharding) ||
        found->second.sizes() != item.tensor.sizes()) {
      shard_slices.current.push_back(item);
      continue;
    }
    const at::Tensor& value = found->second;
    const at::ScalarType own = item.tensor.scalar_type();
    const bool is_own = value.scalar_type() == own;
    for (const zero::ShardSlice& shard_slice : sharding.slices().saved(item.tensor)) {
      shard_slices.current.push_back({item.name, shard_slice.values});
      at::Tensor part =
          value.reshape({-1}).narrow(0, shard_slice.begin, shard_slice.values.numel());
      if (!from_fp32_weights && shard_slice.values.scalar_type() != own) {
        part = part.to(own).to(value.scalar_type());
      }
      shard_slices.saved.push_back(
          {item.name, is_own ? part.to(shard_slice.values.scalar_type()) : part});
      if (sharding.slices().is_quantized(item.tensor)) {
        shard_slices.quantized.push_back(shard_slice);
      }
    }
    if (sharding.slices().has_masters_of(item.tensor)) {
      shard_slices.full_parameters.emplace_back(item.tensor, value);
    }
    values.erase(found);
  }
  for (auto& [name, tensor] : values) {
    shard_slices.saved.push_back({name, std::move(tensor)});
  }
  return shard_slices;
}

NamedTensors own_slices(
    NamedTensors saved,
    const zero::Sharding& sharding,
    const ParameterName& names,
    const std::vector<const char*>& factors) {
  struct Known {
    at::Tensor parameter;
    const zero::ShardSlice* shard_slice = nullptr;  ///< Null: other ranks own all of it.
  };
  std::map<std::string, Known> known;
  for (const at::Tensor& parameter : sharding.parameters()) {
    known[names(parameter)].parameter = parameter;
  }
  for (const auto& [values, shard_slice] : sharding.slices().all()) {
    const auto found = known.find(names(shard_slice.parameter));
    if (found != known.end()) {  // Otherwise it is frozen, and no optimizer has state of it.
      found->second.shard_slice = &shard_slice;
    }
  }
  NamedTensors own;
  for (NamedTensor& item : saved) {
    const auto found = known.find(item.name.substr(0, item.name.rfind('.')));
    const std::string field = item.name.substr(item.name.rfind('.') + 1);
    const bool is_factor = std::ranges::find(factors, field) != factors.end();
    const bool shaped = !is_factor && found != known.end() &&
                        item.tensor.sizes() == found->second.parameter.sizes();
    if (found != known.end() && found->second.shard_slice == nullptr &&
        (shaped || is_factor || item.tensor.dim() == 0)) {
      continue;
    }
    if (shaped && !is_scalar_state(item.name)) {
      const zero::ShardSlice& shard_slice = *found->second.shard_slice;
      item.tensor =
          item.tensor.reshape({-1}).narrow(0, shard_slice.begin, shard_slice.values.numel());
    }
    own.push_back(std::move(item));
  }
  return own;
}

}  // namespace lockstep::internal
