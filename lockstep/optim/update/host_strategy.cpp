// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/update/host_strategy.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/fail_together.h"
#include "lockstep/optim/flat/update_in_fp32.h"
#include "lockstep/optim/update/device_steps_and_rates.h"

namespace lockstep::optim {
namespace {

void check_options(FlatParameterGroups& flat_groups, const OffloadOptimizer& offload) {
  if (!(offload.ratio > 0 && offload.ratio <= 1)) {
    throw ConfigError(
        "offload",
        fmt::format(
            "offload_optimizer.ratio is out of range; got offload_optimizer.ratio={}, expected "
            "above 0, at most 1; remove offload_optimizer to offload nothing",
            offload.ratio));
  }
  if (offload.super_offload && offload.device != OffloadDevice::kCpu) {
    throw ConfigError(
        "offload",
        "super_offload needs the optimizer's state in memory; got offload_optimizer.super_offload "
        "and device nvme, expected cpu; remove super_offload");
  }
  for (size_t group = 0; group < flat_groups.group_count(); ++group) {
    const auto* options = dynamic_cast<const CapturableOptions*>(&flat_groups.options(group));
    if (options != nullptr && options->capturable()) {
      refuse_capture_on_host(flat_groups.rule()->traits().name);
    }
  }
}

/// Returns, by [group][buffer], whether a flat buffer's state is offloaded. The first buffers are,
/// until they have `ratio` of all elements.
std::vector<std::vector<bool>> offloaded_buffers(
    const FlatParameterGroups& flat_groups, double ratio) {
  double total = 0;
  for (size_t group = 0; group < flat_groups.group_count(); ++group) {
    for (size_t buffer = 0; buffer < flat_groups.flat(group).buffer_count(); ++buffer) {
      total += static_cast<double>(flat_groups.flat(group).buffer_values(buffer).numel());
    }
  }
  double so_far = 0;
  std::vector<std::vector<bool>> chosen(flat_groups.group_count());
  for (size_t group = 0; group < flat_groups.group_count(); ++group) {
    for (size_t buffer = 0; buffer < flat_groups.flat(group).buffer_count(); ++buffer) {
      chosen[group].push_back(so_far < ratio * total);
      so_far += static_cast<double>(flat_groups.flat(group).buffer_values(buffer).numel());
    }
  }
  return chosen;
}

/// Returns the number of state fields of a parameter of `group`.
int64_t field_count(FlatParameterGroups& flat_groups, size_t group) {
  const std::vector<FlatParameter>& items = flat_groups.flat(group).items();
  int64_t count = 0;
  for (size_t field = 0; !items.empty() && field < flat_groups.rule()->traits().fields.size();
       ++field) {
    const StateShape shape =
        flat_groups.rule()->shape(flat_groups.options(group), items[0].full_sizes, field);
    count += shape == StateShape::kNone ? 0 : 1;
  }
  return count;
}

/// Returns a file in `folder` with room for `bytes` of state. If it fails on one of `ranks`, all
/// throw. Collective.
std::shared_ptr<offload::ScratchFile> scratch_with_room(
    const std::filesystem::path& folder, int64_t bytes, std::optional<Group> ranks) {
  std::shared_ptr<offload::ScratchFile> scratch;
  const auto make = [&] {
    scratch = std::make_shared<offload::ScratchFile>(folder, "the optimizer's state");
    scratch->reserve(bytes);
  };
  if (ranks) {
    fail_together(*ranks, "offload", "the optimizer's state cannot be stored in files", make);
  } else {
    make();
  }
  return scratch;
}

/// Offloads the state of the chosen buffers, to files if `offload` says so. Returns the largest
/// number of state fields of a bucket in files.
int64_t offload_state(
    FlatParameterGroups& flat_groups,
    const OffloadOptimizer& offload,
    const std::optional<Group>& ranks) {
  check_options(flat_groups, offload);
  const auto chosen = offloaded_buffers(flat_groups, offload.ratio);
  int64_t most_fields = 0;
  int64_t bytes = 0;
  for (size_t group = 0; group < flat_groups.group_count(); ++group) {
    const int64_t fields = field_count(flat_groups, group);
    most_fields = std::max(most_fields, fields);
    for (size_t buffer = 0; buffer < chosen[group].size(); ++buffer) {
      if (chosen[group][buffer]) {
        bytes +=
            fields * offload::ScratchFile::rounded(flat_groups.flat(group).state_bytes(buffer));
      }
    }
  }
  const bool in_files = offload.device == OffloadDevice::kNvme;
  const auto scratch = in_files ? scratch_with_room(offload.nvme_path, bytes, ranks) : nullptr;
  for (size_t group = 0; group < flat_groups.group_count(); ++group) {
    for (size_t buffer = 0; buffer < chosen[group].size(); ++buffer) {
      if (chosen[group][buffer]) {
        flat_groups.flat(group).offload_state(buffer, scratch);
      }
    }
  }
  return in_files ? most_fields : 0;
}

}  // namespace

HostStrategy::HostStrategy(
    FlatParameterGroups& flat_groups,
    const OffloadOptimizer& offload,
    const std::optional<Group>& ranks)
    : flat_groups_(flat_groups),
      sharding_group_(ranks),
      host_update_(
          offload,
          offload_state(flat_groups, offload, ranks),
          has_parameters_in_files(flat_groups)) {
  // Early updates run on a thread of their own, which a program that waits for it would block.
  if (offload.super_offload && !flat_groups.rule()->traits().calls_program) {
    speculative_ = std::make_shared<SpeculativeUpdates>(flat_groups, offload.pin_memory);
  }
}

size_t HostStrategy::step() {
  std::vector<HostUpdate::Bucket> on_host;
  std::vector<HostUpdate::Bucket> on_device;
  collect_buckets(on_host, on_device);
  size_t count = 0;
  const auto update = [&](size_t group, const RuleCall& call) {
    count += call.parameters.size();
    update_in_fp32(call, [&](const RuleCall& wide) {
      flat_groups_.rule()->update(flat_groups_.options(group), wide);
    });
  };
  for (const HostUpdate::Bucket& bucket : on_device) {
    for (const RuleCall& call : bucket.calls.calls()) {
      update(bucket.group, call);
    }
    bucket.calls.copy_back();
  }
  const auto update_on_host = [&] { host_update_.run(on_host, update); };
  if (sharding_group_ && sharding_group_->size() > 1 && host_update_.uses_files()) {
    fail_together(*sharding_group_, "offload", "the update failed", update_on_host);
  } else {
    update_on_host();
  }
  return count;
}

void HostStrategy::collect_buckets(
    std::vector<HostUpdate::Bucket>& on_host, std::vector<HostUpdate::Bucket>& on_device) {
  for (size_t group = 0; group < flat_groups_.group_count(); ++group) {
    const FlatParameterGroup& flat = flat_groups_.flat(group);
    const std::vector<FlatParameter>& items = flat.items();
    for (size_t begin = 0, end = 0; begin < items.size(); begin = end) {
      const size_t buffer = items[begin].buffer;
      bool any = false;
      for (end = begin; end < items.size() && items[end].buffer == buffer; ++end) {
        any = any || items[end].parameter.grad().defined();
      }
      if (!any || (speculative_ && speculative_->take(group, begin, end))) {
        continue;
      }
      RuleCalls calls = gather_calls(flat_groups_, group, begin, end);
      if (buffer != FlatParameter::kNoBuffer && flat.state_is_offloaded(buffer)) {
        on_host.push_back({group, flat.files_of(buffer), std::move(calls)});
      } else {
        on_device.push_back({group, {}, std::move(calls)});
      }
      flat.release_file_pages(buffer);
    }
  }
}

bool has_parameters_in_files(const FlatParameterGroups& flat_groups) {
  for (size_t group = 0; group < flat_groups.group_count(); ++group) {
    for (size_t buffer = 0; buffer < flat_groups.flat(group).buffer_count(); ++buffer) {
      if (!flat_groups.flat(group).files_of(buffer).empty()) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace lockstep::optim
