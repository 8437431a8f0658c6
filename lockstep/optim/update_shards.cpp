// SPDX-License-Identifier: Apache-2.0
// FlatOptimizer where it updates parts of parameters: a rank's shards under ZeRO, wherever these
// and their state lie.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/fail_together.h"
#include "lockstep/optim/flat_optimizer.h"
#include "lockstep/optim/offload/host_update.h"

namespace lockstep::optim {
namespace {

/// Which of the flat buffers of `groups`, by [group][buffer], have their state offloaded: whole
/// ones, the first, until they have `ratio` of all elements.
std::vector<std::vector<bool>> offloaded_buffers(
    const std::vector<FlatGroup>& groups, double ratio) {
  double all = 0;
  for (const FlatGroup& group : groups) {
    for (size_t buffer = 0; buffer < group.buffer_count(); ++buffer) {
      all += static_cast<double>(group.buffer_values(buffer).numel());
    }
  }
  double so_far = 0;
  std::vector<std::vector<bool>> chosen;
  for (const FlatGroup& group : groups) {
    chosen.emplace_back();
    for (size_t buffer = 0; buffer < group.buffer_count(); ++buffer) {
      chosen.back().push_back(so_far < ratio * all);
      so_far += static_cast<double>(group.buffer_values(buffer).numel());
    }
  }
  return chosen;
}

/// A file in `folder` with room for `bytes` of state, on all `ranks` or, with an error, on none.
/// Collective.
std::shared_ptr<offload::ScratchFile> scratch_with_room(
    const std::filesystem::path& folder, int64_t bytes, std::optional<Group>& ranks) {
  std::shared_ptr<offload::ScratchFile> scratch;
  const auto make = [&] {
    scratch = std::make_shared<offload::ScratchFile>(folder, "the optimizer's state");
    scratch->reserve(bytes);
  };
  if (ranks) {
    fail_together(*ranks, "offload", "the optimizer's state cannot go to files", make);
  } else {
    make();
  }
  return scratch;
}

/// What made, saved or loaded them has touched pages of them.
void finish_files(const FlatGroup& group, size_t buffer) {
  if (buffer != FlatParameter::kLoose) {
    for (offload::FileTensor* file : group.files_of(buffer)) {
      file->settle();
    }
  }
}

}  // namespace

void FlatOptimizer::update_shards(
    const std::vector<std::vector<BufferSlices>>& pieces,
    const OffloadOptimizer& offload,
    const std::optional<Group>& ranks,
    bool fp32_state) {
  const c10::AutoGradMode no_grad(false);
  adopt_parameters();
  check_sharded(offload, ranks);
  for (const FlatGroup& group : groups_) {
    for (const FlatParameter& item : group.items()) {
      if (item.step > 0 || sharers_) {
        throw ConfigError(
            "optim",
            fmt::format(
                "{} has state of its own already; prepare it before its first step, and load "
                "checkpoints after",
                traits_.name));
      }
    }
  }
  dividers_ = ranks;
  wholes_.resize(param_groups_.size());
  for (size_t group = 0; group < param_groups_.size(); ++group) {
    std::vector<at::Tensor>& parameters = param_groups_[group].params();
    parameters.clear();
    known_[group].clear();
    groups_[group] = FlatGroup(traits_.fields.size(), fp32_state);
    for (const BufferSlices& each : pieces[group]) {
      groups_[group].add_in_place(each.buffer, each.tensors, each.file);
      note_wholes(group, each);
      for (const at::Tensor& piece : each.tensors) {
        parameters.push_back(piece);
        known_[group].push_back(piece.unsafeGetTensorImpl());
      }
    }
  }
  has_slices_ = true;
  offload_state(offload);
  for (size_t group = 0; group < groups_.size(); ++group) {
    if (traits_.eager_state) {
      for (FlatParameter& item : groups_[group].items()) {
        create_missing_state(group, item);
      }
      for (size_t buffer = 0; buffer < groups_[group].buffer_count(); ++buffer) {
        finish_files(groups_[group], buffer);
      }
    }
  }
}

void FlatOptimizer::offload_state(const OffloadOptimizer& offload) {
  const bool in_files = offload.device == OffloadDevice::kNvme;
  bool values_in_files = false;
  for (const FlatGroup& group : groups_) {
    for (size_t buffer = 0; buffer < group.buffer_count(); ++buffer) {
      values_in_files = values_in_files || !group.files_of(buffer).empty();
    }
  }
  if (offload.device == OffloadDevice::kNone) {
    if (values_in_files) {
      throw ConfigError(
          "offload",
          "parameters in files can only be updated on the host; got offload_optimizer.device none, "
          "expected cpu or nvme");
    }
    return;
  }
  if (!(offload.ratio > 0 && offload.ratio <= 1)) {
    throw ConfigError(
        "offload",
        fmt::format(
            "no part of the state can be offloaded; got offload_optimizer.ratio={}, expected more "
            "than 0, at most 1; leave offload_optimizer out to offload nothing",
            offload.ratio));
  }
  if (offload.super_offload && offload.device != OffloadDevice::kCpu) {
    throw ConfigError(
        "offload",
        "an update can only begin early where its state is in memory; got "
        "offload_optimizer.super_offload and device nvme, expected cpu; leave super_offload out");
  }
  for (const torch::optim::OptimizerParamGroup& group : param_groups_) {
    const auto* options = dynamic_cast<const CapturableOptions*>(&group.options());
    if (options != nullptr && options->capturable()) {
      refuse_to_capture_offloaded();
    }
  }
  const auto chosen = offloaded_buffers(groups_, offload.ratio);
  int64_t most_fields = 0;
  int64_t bytes = 0;
  for (size_t index = 0; index < groups_.size(); ++index) {
    const FlatGroup& group = groups_[index];
    int64_t fields = 0;
    if (!group.items().empty()) {
      for (size_t field = 0; field < traits_.fields.size(); ++field) {
        const StateShape wanted =
            shape(param_groups_[index].options(), group.items()[0].whole_sizes(), field);
        fields += wanted == StateShape::kNone ? 0 : 1;
      }
    }
    most_fields = std::max(most_fields, fields);
    for (size_t buffer = 0; buffer < group.buffer_count(); ++buffer) {
      if (chosen[index][buffer]) {
        bytes += fields * offload::ScratchFile::rounded(group.state_bytes(buffer));
      }
    }
  }
  const auto scratch = in_files ? scratch_with_room(offload.nvme_path, bytes, dividers_) : nullptr;
  for (size_t index = 0; index < groups_.size(); ++index) {
    for (size_t buffer = 0; buffer < groups_[index].buffer_count(); ++buffer) {
      if (chosen[index][buffer]) {
        groups_[index].offload_state(buffer, scratch);
      }
    }
  }
  host_update_ = std::make_shared<HostUpdate>(offload, in_files ? most_fields : 0, values_in_files);
  if (offload.super_offload) {
    early_ = std::make_shared<SpeculativeStep>(offload.pin_memory);
  }
}

void FlatOptimizer::refuse_to_capture_offloaded() const {
  throw ConfigError(
      "offload",
      fmt::format(
          "{}: an update on the host cannot be part of a graph; got capturable and "
          "offload_optimizer; leave one of them out",
          traits_.name));
}

void FlatOptimizer::update_by_buckets() {
  std::vector<HostUpdate::Bucket> on_host;
  std::vector<HostUpdate::Bucket> in_place;
  for (size_t index = 0; index < groups_.size(); ++index) {
    const FlatGroup& group = groups_[index];
    const std::vector<FlatParameter>& items = group.items();
    for (size_t begin = 0, end = 0; begin < items.size(); begin = end) {
      const size_t buffer = items[begin].buffer;
      bool any = false;
      for (end = begin; end < items.size() && items[end].buffer == buffer; ++end) {
        any = any || items[end].parameter.grad().defined();
      }
      if (!any || take_speculative(index, begin, end)) {
        continue;
      }
      const bool offloaded = buffer != FlatParameter::kLoose && group.state_is_offloaded(buffer);
      (offloaded ? on_host : in_place)
          .push_back(
              {.group = index, .buffer = buffer, .batches_to_update = gather(index, begin, end)});
      finish_files(group, buffer);
    }
  }
  run_count_ = 0;
  const auto update_one = [this](size_t group, const Batch& batch) {
    update_slice(param_groups_[group].options(), batch);
  };
  for (const HostUpdate::Bucket& bucket : in_place) {
    for (const Batch& batch : bucket.batches_to_update.batches()) {
      update_one(bucket.group, batch);
    }
    bucket.batches_to_update.copy_back();
  }
  const auto run = [&] { host_update_->run(groups_, on_host, update_one); };
  if (dividers_ && dividers_->size() > 1 && host_update_->uses_files()) {
    fail_together(*dividers_, "offload", "the update failed", run);
  } else {
    run();
  }
}

}  // namespace lockstep::optim
