// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/sharded_state.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/base/machine.h"
#include "lockstep/comm/paged.h"
#include "lockstep/storage/slices.h"
#include "lockstep/storage/state_files.h"

namespace lockstep {
namespace {

/// Whether what counts of a tensor are the ranks' pieces.
bool is_in_pieces(const at::Tensor& tensor, const zero::Sharding& sharding) {
  return comm::is_paged(tensor) || sharding.has_masters_of(tensor);
}

/// This rank's part of the set of tensors `stem`.
void add_part(
    checkpoint::Contents& contents,
    const std::string& stem,
    const zero::Sharding& sharding,
    NamedTensors own,
    const checkpoint::Slices& slices,
    const SavedWhere& where) {
  std::map<std::string, std::string> metadata;
  if (where.on_each_host) {
    metadata[checkpoint::kPartKey] = checkpoint::render_slices(stem, slices);
    contents.add_tensors(
        checkpoint::state_files::part_of_rank(stem, sharding.group().rank()),
        std::move(own),
        std::move(metadata));
    return;
  }
  if (!slices.empty()) {
    metadata[checkpoint::kSlicesKey] = checkpoint::render_slices(stem, slices);
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

/// By the names of parameters, this rank's pieces of what the optimizer trains.
std::map<std::string, zero::Piece> trained_pieces(
    const zero::Sharding& sharding, const ParameterName& names) {
  std::map<std::string, zero::Piece> pieces;
  for (const auto& [values, piece] : sharding.pieces()) {
    if (piece.values.requires_grad()) {
      pieces[names(piece.parameter)] = piece;
    }
  }
  return pieces;
}

[[noreturn]] void refuse_division(
    const std::string& path, const std::string& name, const std::string& there, int64_t begin) {
  throw CheckpointError(
      path,
      fmt::format(
          "is divided otherwise than this run: it has {}, and this rank's part begins at element "
          "{}; load it with the stage, the bucket size, and the ranks that saved it",
          there,
          begin),
      name);
}

/// All ranks' beginnings together say how a parameter was divided, also where its state has no
/// slices: rows and columns, which a rank that had no slice has none of.
void check_beginnings(
    const std::string& path,
    const std::map<std::string, zero::Piece>& pieces,
    const checkpoint::Slices& slices) {
  for (const auto& [name, piece] : pieces) {
    const auto saved = slices.find(name);
    if (saved == slices.end()) {
      refuse_division(path, name, "no part of this parameter", piece.begin);
    }
    if (saved->second.begin != piece.begin ||
        piece.parameter.sizes() != at::IntArrayRef(saved->second.shape)) {
      refuse_division(
          path,
          name,
          fmt::format(
              "elements from {} on of [{}]",
              saved->second.begin,
              fmt::join(saved->second.shape, ", ")),
          piece.begin);
    }
  }
}

struct SavedPart {
  std::string path;
  NamedTensors tensors;
  checkpoint::Slices slices;
};

/// What this rank saved of `stem` on its host, once it is known to be divided as it is now.
/// `pieces`: this rank's, by the names of parameters; `parameter_of`: a tensor's name to that.
SavedPart read_part(
    const checkpoint::Reader& reader,
    const std::string& stem,
    const zero::Sharding& sharding,
    const std::map<std::string, zero::Piece>& pieces,
    const std::function<std::string(const std::string& name)>& parameter_of) {
  const std::string file = checkpoint::state_files::part_of_rank(stem, sharding.group().rank());
  const std::string path = (reader.path() / file).string();
  if (!reader.has(file)) {
    throw CheckpointError(
        path,
        fmt::format(
            "is not on host {}: each host has saved what its own ranks had; start the ranks on the "
            "hosts where they were when it was saved, or copy this file and its checkpoint there",
            describe_machine().system.host));
  }
  const auto metadata = reader.open_tensors(file).metadata();
  const auto text = metadata.find(checkpoint::kPartKey);
  if (text == metadata.end()) {
    throw CheckpointError(
        path, fmt::format("does not say what it is a part of ({})", checkpoint::kPartKey));
  }
  checkpoint::Slices slices = checkpoint::parse_slices(path, text->second);
  NamedTensors own = reader.tensors(file);
  for (const NamedTensor& item : own) {
    const auto slice = slices.find(item.name);
    const auto piece = pieces.find(parameter_of(item.name));
    if (slice == slices.end() || piece == pieces.end()) {
      continue;  // A count; or of another model, which is said later.
    }
    const zero::Piece& here = piece->second;
    if (here.parameter.sizes() != at::IntArrayRef(slice->second.shape) ||
        here.begin != slice->second.begin || here.values.numel() != item.tensor.numel()) {
      throw CheckpointError(
          path,
          fmt::format(
              "is divided otherwise than this run: it has {} elements from {} on, and this rank "
              "{} from {} on; load it with the stage, the bucket size, and the ranks that saved it",
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
  const std::map<std::string, zero::Piece> pieces = trained_pieces(sharding, names);
  SavedPart part = read_part(reader, stem, sharding, pieces, [](const std::string& name) {
    return name.substr(0, name.rfind('.'));
  });
  check_beginnings(part.path, pieces, part.slices);
  return std::move(part.tensors);
}

ModelPieces own_model_part(
    const checkpoint::Reader& reader,
    const std::string& stem,
    const NamedTensors& current,
    const zero::Sharding& sharding,
    bool from_fp32_weights) {
  ModelPieces parts;
  std::map<std::string, zero::Piece> pieces;
  for (const NamedTensor& item : current) {
    if (!is_in_pieces(item.tensor, sharding)) {
      parts.current.push_back(item);
      continue;
    }
    for (zero::Piece& piece : sharding.saved_pieces(item.tensor)) {
      parts.current.push_back({item.name, piece.values});
      if (sharding.is_kept_in_8_bits(item.tensor)) {
        parts.packed.push_back(piece);
      }
      pieces[item.name] = std::move(piece);
    }
  }
  parts.saved = read_part(reader, stem, sharding, pieces, [](const std::string& name) {
                  return name;
                }).tensors;
  for (NamedTensor& item : parts.saved) {
    const auto piece = pieces.find(item.name);
    if (!from_fp32_weights && piece != pieces.end()) {
      const at::ScalarType saved = item.tensor.scalar_type();
      item.tensor = item.tensor.to(piece->second.parameter.scalar_type()).to(saved);
    }
  }
  for (NamedTensor& item : reader.tensors(checkpoint::state_files::undivided(stem))) {
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
    const SavedWhere& where) {
  // A rank has one piece of a parameter at most, so its name is the parameter's here.
  std::map<std::string, zero::Piece> pieces;
  const ParameterName name_of = [&](const at::Tensor& piece) {
    std::string name = names(piece);
    pieces[name] = *sharding.piece_with(piece);
    return name;
  };
  NamedTensors own;
  checkpoint::Slices slices;
  for (NamedTensor& item : optimizer_tensors(optimizer, name_of)) {
    const zero::Piece& piece = pieces.at(item.name.substr(0, item.name.rfind('.')));
    if (item.tensor.dim() == 1) {
      slices[item.name] = {.shape = piece.parameter.sizes().vec(), .begin = piece.begin};
    } else if (piece.begin > 0 && !where.on_each_host) {
      continue;  // A count, which the rank with the first element saves.
    }
    own.push_back(std::move(item));
  }
  if (where.on_each_host) {
    for (const auto& [name, piece] : trained_pieces(sharding, names)) {
      slices[name] = {.shape = piece.parameter.sizes().vec(), .begin = piece.begin};
    }
  }
  add_part(contents, stem, sharding, std::move(own), slices, where);
}

void add_sharded_model(
    checkpoint::Contents& contents,
    const std::string& stem,
    const NamedTensors& tensors,
    const zero::Sharding& sharding,
    const SavedWhere& where) {
  NamedTensors own;
  NamedTensors undivided;
  checkpoint::Slices slices;
  for (const NamedTensor& item : tensors) {
    if (!is_in_pieces(item.tensor, sharding)) {
      if (where.leads) {
        (where.on_each_host ? undivided : own).push_back(item);
      }
      continue;
    }
    for (const zero::Piece& piece : sharding.saved_pieces(item.tensor)) {
      slices[item.name] = {.shape = item.tensor.sizes().vec(), .begin = piece.begin};
      own.push_back({item.name, piece.values.detach()});
    }
  }
  if (where.on_each_host && where.leads) {
    contents.add_tensors(checkpoint::state_files::undivided(stem), std::move(undivided));
  }
  add_part(contents, stem, sharding, std::move(own), slices, where);
}

ModelPieces own_model_pieces(
    const NamedTensors& current,
    NamedTensors saved,
    const zero::Sharding& sharding,
    bool from_fp32_weights) {
  std::map<std::string, at::Tensor> values;
  for (NamedTensor& item : saved) {
    values[item.name] = std::move(item.tensor);
  }
  ModelPieces pieces;
  for (const NamedTensor& item : current) {
    const auto found = values.find(item.name);
    if (found == values.end() || !is_in_pieces(item.tensor, sharding) ||
        found->second.sizes() != item.tensor.sizes()) {
      pieces.current.push_back(item);
      continue;
    }
    const at::Tensor& value = found->second;
    const at::ScalarType own = item.tensor.scalar_type();
    const bool is_own = value.scalar_type() == own;
    for (const zero::Piece& piece : sharding.saved_pieces(item.tensor)) {
      pieces.current.push_back({item.name, piece.values});
      at::Tensor part = value.reshape({-1}).narrow(0, piece.begin, piece.values.numel());
      if (!from_fp32_weights && piece.values.scalar_type() != own) {
        part = part.to(own).to(value.scalar_type());
      }
      pieces.saved.push_back({item.name, is_own ? part.to(piece.values.scalar_type()) : part});
      if (sharding.is_kept_in_8_bits(item.tensor)) {
        pieces.packed.push_back(piece);
      }
    }
    if (sharding.has_masters_of(item.tensor)) {
      pieces.whole.emplace_back(item.tensor, value);
    }
    values.erase(found);
  }
  for (auto& [name, tensor] : values) {
    pieces.saved.push_back({name, std::move(tensor)});
  }
  return pieces;
}

NamedTensors own_slices(
    NamedTensors saved,
    const zero::Sharding& sharding,
    const ParameterName& names,
    const std::vector<const char*>& factors) {
  struct Known {
    at::Tensor parameter;
    const zero::Piece* piece = nullptr;  ///< Null: other ranks own all of it.
  };
  std::map<std::string, Known> known;
  for (const at::Tensor& parameter : sharding.parameters()) {
    known[names(parameter)].parameter = parameter;
  }
  for (const auto& [values, piece] : sharding.pieces()) {
    const auto found = known.find(names(piece.parameter));
    if (found != known.end()) {  // Else it is frozen, and no optimizer has state of it.
      found->second.piece = &piece;
    }
  }
  NamedTensors own;
  for (NamedTensor& item : saved) {
    const auto found = known.find(item.name.substr(0, item.name.rfind('.')));
    const std::string field = item.name.substr(item.name.rfind('.') + 1);
    const bool is_factor = std::ranges::find(factors, field) != factors.end();
    const bool shaped = !is_factor && found != known.end() &&
                        item.tensor.sizes() == found->second.parameter.sizes();
    if (found != known.end() && found->second.piece == nullptr &&
        (shaped || is_factor || item.tensor.dim() == 0)) {
      continue;
    }
    if (shaped && !is_scalar_state(item.name)) {
      const zero::Piece& piece = *found->second.piece;
      item.tensor = item.tensor.reshape({-1}).narrow(0, piece.begin, piece.values.numel());
    }
    own.push_back(std::move(item));
  }
  return own;
}

}  // namespace lockstep
