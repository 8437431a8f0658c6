// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/group.h"

namespace lockstep::zero {

/// Options of ZeRO++ on top of stage 3: fewer bytes between hosts, for rounded numbers.
struct PlusPlusOptions {
  /// qwZ: parameters are sent in 8 bits. Updates and checkpoints are exact.
  bool quantized_weights = false;
  /// Frozen parameters are stored and sent in 8 bits: all ranks compute with the rounded values.
  bool quantized_frozen = false;
  /// qgZ: gradients are sent in 4 bits, first within hosts, then between them.
  bool quantized_gradients = false;
  /// hpZ: ranks r with equal r / P keep a secondary shard together. Only the first gather after an
  /// update leaves their group. 1: none.
  int hpz_partition_size = 1;
  /// Ranks of a host, for qgZ: those with equal r / size. 0 or 1: one hop over all ranks.
  int host_size = 0;

  bool any() const {
    return quantized_weights || quantized_frozen || quantized_gradients || hpz_partition_size > 1;
  }
};

/// The process groups of these options. A group that no option needs has one rank.
struct PlusPlusGroups {
  PlusPlusGroups() = default;
  /// Throws ConfigError unless the sizes are positive and divide that of `world`. Collective.
  PlusPlusGroups(Group& world, const PlusPlusOptions& options);

  void check_alive() const {
    hpz.check_alive();
    within.check_alive();
    between.check_alive();
  }

  Group hpz;      ///< hpZ: ranks that keep a secondary shard together.
  Group within;   ///< qgZ: the ranks of this host.
  Group between;  ///< qgZ: the ranks of equal local rank, by host.
};

}  // namespace lockstep::zero
