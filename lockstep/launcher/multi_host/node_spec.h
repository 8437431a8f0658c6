// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "lockstep/launcher/plan/job_options.h"
#include "lockstep/launcher/plan/plan.h"
#include "lockstep/launcher/process/program.h"

namespace lockstep::launcher {

/// Everything that the launcher of one host has to know of a job of several hosts. Travels as a
/// line of JSON on its stdin: nothing a user wrote becomes part of a remote shell's command, and
/// the token is in no list of processes.
struct NodeSpec {
  static constexpr int kHere = -1;

  std::string token;
  int node = kHere;  ///< kHere: whoever reads it finds out (mpirun's or srun's rank).
  std::vector<PlannedHost> hosts;
  JobOptions options;              ///< Without a hostfile: `hosts` is what it said.
  std::vector<std::string> words;  ///< The program and its arguments, as the user wrote them.
  ProgramKind kind = ProgramKind::kAny;
  std::string folder;  ///< To run in.
};

/// A line of ASCII. Arguments and paths are bytes, of which JSON has none: each travels as the
/// character of its number.
std::string line_of(const NodeSpec& spec);
/// ConfigError for what is no such line.
NodeSpec node_spec_of(const std::string& line);

}  // namespace lockstep::launcher
