// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/optim/flat/flat_parameter_groups.h"
#include "lockstep/optim/offload/host_update.h"
#include "lockstep/optim/update/speculative_updates.h"
#include "lockstep/optim/update/update_strategy.h"
#include "lockstep/zero_options/offload.h"

namespace lockstep::optim {

/// Updates this rank's shard slices bucket by bucket. Buckets with offloaded state are updated on
/// the host (see HostUpdate), others on their device. Updates of fp16 and bf16 slices run in fp32,
/// and are rounded once. For elementwise rules.
class HostStrategy final : public UpdateStrategy {
 public:
  /// Offloads the state of `flat_groups`, which must outlive this, and have no state yet. `ranks`
  /// own the other slices. Throws ConfigError for an impossible offload. Collective if state is in
  /// files.
  HostStrategy(
      FlatParameterGroups& flat_groups,
      const OffloadOptimizer& offload,
      const std::optional<Group>& ranks);

  /// Updates all buckets. Collective if any parameters or state are in files: a disk error on one
  /// rank throws ConfigError on all.
  size_t step() override;

  const HostUpdate& host_update() const { return host_update_; }
  /// Null without OffloadOptimizer::super_offload.
  const std::shared_ptr<SpeculativeUpdates>& speculative() const { return speculative_; }

 private:
  /// Adds each bucket with gradients to `on_host` or `on_device`, except those that `speculative_`
  /// updates.
  void collect_buckets(
      std::vector<HostUpdate::Bucket>& on_host, std::vector<HostUpdate::Bucket>& on_device);

  FlatParameterGroups& flat_groups_;
  std::optional<Group> sharding_group_;
  HostUpdate host_update_;
  std::shared_ptr<SpeculativeUpdates> speculative_;
};

/// Returns whether any parameters of `flat_groups` are in files.
bool has_parameters_in_files(const FlatParameterGroups& flat_groups);

}  // namespace lockstep::optim
