// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/group.h"

namespace lockstep::zero {

/// ZeRO++ on top of stage 3: fewer bytes between hosts, for numbers that are rounded on their way.
struct PlusPlusOptions {
  /// qwZ: parameters travel in 8 bits. What is updated and saved is exact.
  bool quantized_weights = false;
  /// Frozen parameters are kept in 8 bits, and travel so: all ranks compute with these.
  bool quantized_frozen = false;
  /// qgZ: gradients travel in 4 bits, within hosts first, then between them.
  bool quantized_gradients = false;
  /// hpZ: ranks r with equal r / P keep a second copy together, so that only the first gather after
  /// an update leaves their group. 1: none.
  int hpz_partition_size = 1;
  /// Ranks of a host, for qgZ: those with equal r / size. 0 or 1: one hop over all ranks.
  int host_size = 0;

  bool any() const {
    return quantized_weights || quantized_frozen || quantized_gradients || hpz_partition_size > 1;
  }
};

/// The groups that they need; of one rank where there is no need.
struct PlusPlusGroups {
  PlusPlusGroups() = default;
  /// ConfigError unless the sizes are positive and divide that of `world`. Collective.
  PlusPlusGroups(Group& world, const PlusPlusOptions& options);

  void check_alive() const {
    close.check_alive();
    within.check_alive();
    between.check_alive();
  }

  Group close;    ///< hpZ: who keep a second copy together.
  Group within;   ///< qgZ: the ranks of this host.
  Group between;  ///< qgZ: those of equal local rank, by host.
};

}  // namespace lockstep::zero
