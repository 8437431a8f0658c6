// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "lockstep/launcher/plan/hostfile.h"

namespace lockstep::launcher {

/// A host and its used slots, ascending.
struct HostSlots {
  std::string name;
  std::vector<int> slots{};
  bool all = true;  ///< All slots of the hostfile.
};

/// Selects hosts of a hostfile, in DeepSpeed's grammar and in the hostfile's order.
///
/// A filter is `NODE[@NODE...]`, where a NODE is `NAME[:SLOT[,SLOT...]]`, slots count from 0 and no
/// slots mean all of them. A repeated name means the slots of both parts; a part without slots adds
/// none, as in DeepSpeed: `a:1@a` is slot 1. `include` keeps only the named slots, `exclude` drops
/// them; at most one of them is given. `most_hosts` > 0 keeps that many hosts instead, without
/// either. Throws ConfigError, with the likeliest correction, for an unknown host or slot, and for
/// an empty result. Pure.
std::vector<HostSlots> filter_hosts(
    const std::vector<Host>& hosts,
    const std::string& include,
    const std::string& exclude,
    int most_hosts);

}  // namespace lockstep::launcher
