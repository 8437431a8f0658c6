// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/sharded_state.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "lockstep/comm/paged.h"
#include "lockstep/storage/slices.h"

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
    const checkpoint::Slices& slices) {
  std::map<std::string, std::string> metadata;
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

}  // namespace

void add_sharded_optimizer(
    checkpoint::Contents& contents,
    const std::string& stem,
    torch::optim::Optimizer& optimizer,
    const zero::Sharding& sharding,
    const ParameterName& names) {
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
    } else if (piece.begin > 0) {
      continue;  // A count, which the rank with the first element saves.
    }
    own.push_back(std::move(item));
  }
  add_part(contents, stem, sharding, std::move(own), slices);
}

void add_sharded_model(
    checkpoint::Contents& contents,
    const std::string& stem,
    const NamedTensors& tensors,
    const zero::Sharding& sharding) {
  NamedTensors own;
  checkpoint::Slices slices;
  for (const NamedTensor& item : tensors) {
    if (!is_in_pieces(item.tensor, sharding)) {
      if (sharding.group().rank() == 0) {
        own.push_back(item);
      }
      continue;
    }
    for (const at::Tensor& values : sharding.pieces_of({item.tensor})) {
      slices[item.name] = {
          .shape = item.tensor.sizes().vec(), .begin = sharding.piece_with(values)->begin};
      own.push_back({item.name, values.detach()});
    }
  }
  add_part(contents, stem, sharding, std::move(own), slices);
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
    for (const at::Tensor& piece : sharding.pieces_of({item.tensor})) {
      pieces.current.push_back({item.name, piece});
      at::Tensor part =
          value.reshape({-1}).narrow(0, sharding.piece_with(piece)->begin, piece.numel());
      if (!from_fp32_weights && piece.scalar_type() != own) {
        part = part.to(own).to(value.scalar_type());
      }
      pieces.saved.push_back({item.name, is_own ? part.to(piece.scalar_type()) : part});
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
