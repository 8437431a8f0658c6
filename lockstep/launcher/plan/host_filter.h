// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "lockstep/launcher/plan/hostfile.h"

namespace lockstep::launcher {

/// A host and those of its slots that are used, ascending.
struct HostSlots {
  std::string name;
  std::vector<int> slots{};
  bool all = true;  ///< All that the hostfile gives it.
};

/// Part of a hostfile's hosts, in DeepSpeed's grammar: `NODE[@NODE...]`, where a NODE is
/// `NAME[:SLOT[,SLOT...]]`, slots count from 0 and no slots mean all of them. A name given twice
/// means the slots of both its parts; a part without slots adds none to the other's, as in
/// DeepSpeed: `a:1@a` is slot 1. The order stays the hostfile's.
///
/// `include` keeps only what it names, `exclude` drops what it names; one of them at least is
/// empty. `most_hosts` > 0 keeps the first so many instead, and goes with neither. ConfigError,
/// with the likeliest correction, for a host or slot that is not there, and where nothing is left.
/// Pure.
std::vector<HostSlots> filter_hosts(
    const std::vector<Host>& hosts,
    const std::string& include,
    const std::string& exclude,
    int most_hosts);

}  // namespace lockstep::launcher
