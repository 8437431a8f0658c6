// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "lockstep/base/host/world.h"
#include "lockstep/comm/group.h"

namespace lockstep {

/// Runs `body` on one process of the job, or on one of each host. Throws ConfigError on every
/// process if there is no such process.
void run_on_process(const WorldSpec& world, int process, const std::function<void()>& body);
void run_on_local_process(const WorldSpec& world, int process, const std::function<void()>& body);

/// Runs `body` on the process for which `first` is true, then on the others. If it throws on the
/// first, all others throw Error. Collective.
void run_in_turn(Group group, bool first, const std::function<void()>& body);

/// Writes a line to stdout, beside a progress bar if one is drawn.
void print_line(const std::string& line);

}  // namespace lockstep
