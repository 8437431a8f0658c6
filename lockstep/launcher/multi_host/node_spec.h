// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "lockstep/config/settings/job_options.h"
#include "lockstep/launcher/plan/plan.h"
#include "lockstep/launcher/process/program.h"

namespace lockstep::launcher {

/// The instructions for the launcher of one host in a job of several hosts.
///
/// They are sent as a line of JSON on the launcher's stdin: no user input becomes part of a remote
/// shell's command, and the token is in no process list.
struct NodeSpec {
  static constexpr int kFromStarter = -1;

  std::string token;
  int node = kFromStarter;  ///< kFromStarter: the reader uses mpirun's or srun's rank.
  std::vector<PlannedHost> hosts;
  config::JobOptions options;        ///< Without a hostfile: `hosts` has its content.
  std::vector<std::string> command;  ///< The program and its arguments, as the user wrote them.
  ProgramKind kind = ProgramKind::kAny;
  std::string folder;  ///< The working directory.
};

/// Encodes `spec` as a line of ASCII. Arguments and paths are bytes, which JSON lacks: each byte is
/// encoded as the character of that number.
std::string line_of(const NodeSpec& spec);
/// Decodes a line. Throws ConfigError if it is invalid.
NodeSpec node_spec_of(const std::string& line);

}  // namespace lockstep::launcher
