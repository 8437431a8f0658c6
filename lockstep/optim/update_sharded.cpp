// SPDX-License-Identifier: Apache-2.0
// FlatOptimizer where ranks have slices of parameters, and the rule needs them whole.
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ops/zeros.h>

#include "lockstep/base/error.h"
#include "lockstep/optim/flat/sharded_batch.h"
#include "lockstep/optim/flat/update_in_fp32.h"
#include "lockstep/optim/flat_optimizer.h"

namespace lockstep::optim {

void FlatOptimizer::check_sharded(
    const OffloadOptimizer& offload, const std::optional<Group>& ranks) const {
  bool any = false;
  for (size_t group = 0; group < param_groups_.size(); ++group) {
    any = any || group_needs_full(group);
  }
  if (any && offload.device != OffloadDevice::kNone) {
    throw ConfigError(
        "optim",
        fmt::format(
            "{} needs every parameter whole, and brings it together where the parameters are "
            "computed with; got offload_optimizer, which leaves its state on the host; leave that "
            "out, or use one that works element by element, as AdamW does",
            traits_.name));
  }
  if (any && !ranks) {
    throw ConfigError(
        "optim",
        fmt::format(
            "{} needs every parameter whole; got parts of them, and not the ranks that have the "
            "others",
            traits_.name));
  }
}

void FlatOptimizer::note_wholes(size_t group, const BufferSlices& pieces) {
  if (!dividers_) {
    return;
  }
  std::vector<FlatParameter>& items = groups_[group].items();
  size_t next = items.size() - pieces.tensors.size();
  for (const flat::ShardBounds& division : pieces.full_parameters) {
    if (division.numel() == 0) {
      continue;
    }
    FullParameter& whole = wholes_[group].emplace_back(
        FullParameter{division, pieces.buffer.options().requires_grad(false), std::nullopt});
    if (division.length(dividers_->rank()) > 0) {
      whole.item = next;
      items.at(next).whole = division.sizes;
      ++next;
    }
  }
  LOCKSTEP_ASSERT(next == items.size(), "a slice is of no parameter");
}

void FlatOptimizer::check_added(size_t group, const std::vector<at::Tensor>& added) const {
  if (has_slices_) {
    throw ConfigError(
        "optim",
        fmt::format(
            "{}: a parameter was added to what ranks have divided, of which each would have it "
            "whole, and update it by its own gradient; give it to the optimizer, not frozen, "
            "before prepare()",
            traits_.name));
  }
  for (const at::Tensor& parameter : added) {
    for (size_t field = 0; field < traits_.fields.size(); ++field) {
      shape(param_groups_[group].options(), parameter.sizes(), field);
    }
  }
}

std::vector<int64_t> FlatOptimizer::whole_sizes(const at::Tensor& parameter) const {
  const Place place = place_of(parameter);
  return groups_[place.group].items()[place.item].whole_sizes();
}

/// [group][whole] Whether it has a gradient; nothing of a group that needs no wholes. Collective if
/// any does.
std::vector<std::vector<bool>> FlatOptimizer::agree_on_gradients() {
  std::vector<std::vector<bool>> updated(groups_.size());
  std::vector<size_t> divided;  // Groups.
  int64_t total = 0;
  for (size_t group = 0; group < wholes_.size(); ++group) {
    if (group_needs_full(group) && !wholes_[group].empty()) {
      divided.push_back(group);
      total += static_cast<int64_t>(wholes_[group].size());
    }
  }
  if (total == 0) {
    return updated;
  }
  for (const size_t group : divided) {
    if (is_capturing(wholes_[group][0].options.device())) {
      throw ConfigError(
          "optim",
          fmt::format(
              "{}: ranks bring parameters together in this update, which cannot be part of a "
              "graph; step outside of the capture",
              traits_.name));
    }
  }
  const at::Tensor flags = at::zeros({2, total}, at::kByte);
  auto* has = flags.mutable_data_ptr<uint8_t>();
  auto* lacks = has + total;
  int64_t index = 0;
  for (const size_t group : divided) {
    for (const FullParameter& whole : wholes_[group]) {
      if (whole.item) {
        const FlatParameter& item = groups_[group].items()[*whole.item];
        (item.parameter.grad().defined() ? has : lacks)[index] = 1;
      }
      ++index;
    }
  }
  dividers_->all_reduce(flags, ReduceOp::kMax).wait();
  index = 0;
  for (const size_t group : divided) {
    for (const FullParameter& whole : wholes_[group]) {
      if (has[index] != 0 && lacks[index] != 0) {
        throw ConfigError(
            "optim",
            fmt::format(
                "{}: a parameter of shape [{}] in group {} has a gradient on some ranks and none "
                "on others that have a part of it, too; expected it on all or on none: drop "
                "gradients on all ranks alike",
                traits_.name,
                fmt::join(whole.division.sizes, ", "),
                group));
      }
      updated[group].push_back(has[index] != 0);
      ++index;
    }
  }
  return updated;
}

void FlatOptimizer::append_slice(size_t group, const FullParameter& whole, ShardedBatch& batch) {
  FlatParameter& item = groups_[group].items()[*whole.item];
  Batch& slices = batch.slices;
  ++item.step;
  groups_[group].follow_parameter(item);
  slices.first = create_missing_state(group, item) || slices.first;
  batch.full_index.push_back(batch.full_parameters.size());
  slices.parameters.push_back(item.parameter);
  slices.gradients.push_back(item.parameter.grad().to(item.parameter.scalar_type()).contiguous());
  for (size_t field = 0; field < item.state.size(); ++field) {
    slices.state[field].push_back(item.state[field]);
  }
  slices.steps.push_back(item.step);
  if (item.device_step.defined()) {
    slices.device_steps.push_back(item.device_step);
  }
}

/// Those of fp16 and bf16 in fp32, and rounded once.
void FlatOptimizer::update_slices(size_t group, ShardedBatch batch) {
  const torch::optim::OptimizerOptions& options = param_groups_[group].options();
  if (batch.options.dtype().itemsize() >= 4) {
    update_sharded(options, batch);
    return;
  }
  const WideCopies copies(batch.slices);
  batch.slices = copies.wide();
  batch.options = batch.options.dtype(at::kFloat);
  update_sharded(options, batch);
  copies.round_back();
}

/// A batch for each dtype, in an order that all ranks have.
void FlatOptimizer::update_wholes(size_t group, const std::vector<bool>& updated) {
  const std::vector<FullParameter>& full_parameters = wholes_[group];
  std::vector<bool> done(full_parameters.size());
  for (size_t first = 0; first < full_parameters.size(); ++first) {
    ShardedBatch batch{
        .ranks = *dividers_,
        .full_parameters = {},
        .full_index = {},
        .slices = {},
        .options = full_parameters[first].options};
    batch.slices.state.resize(traits_.fields.size());
    if (device_rates_[group]) {
      batch.slices.device_lr = device_rates_[group]->tensor();
    }
    for (size_t i = first; i < full_parameters.size(); ++i) {
      if (done[i] || !updated[i] || full_parameters[i].options.dtype() != batch.options.dtype()) {
        continue;
      }
      done[i] = true;
      if (full_parameters[i].item) {
        append_slice(group, full_parameters[i], batch);
      }
      batch.full_parameters.push_back(&full_parameters[i].division);
    }
    if (!batch.full_parameters.empty()) {
      run_count_ += batch.slices.parameters.size();
      update_slices(group, std::move(batch));
    }
  }
}

}  // namespace lockstep::optim
