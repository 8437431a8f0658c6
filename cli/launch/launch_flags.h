// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "lockstep/launcher/plan/cores.h"
#include "lockstep/launcher/plan/job_options.h"
#include "lockstep/launcher/process/program.h"

namespace lockstep::cli {

/// What the options of `lockstep launch` say: torchrun's, Accelerate's and DeepSpeed's names of one
/// thing all fill the same field. Plain values go right into `options`; texts that are read with a
/// view to each other stay texts until job_options() does so. Empty: not given.
struct LaunchFlags {
  launcher::JobOptions options{};
  std::string nproc_per_node{};  ///< A number, cpu, gpu or auto: ranks of each host.
  std::string num_processes{};   ///< The same, of all hosts together if it is a number.
  std::string nnodes{};          ///< "2" or "2:2".
  std::string rdzv_backend{};
  std::string rdzv_endpoint{};  ///< HOST or HOST:PORT.
  std::string rdzv_conf{};      ///< KEY=VALUE,...
  std::string launcher{};       ///< Who starts the launchers of other hosts.
  std::string launcher_args{};  ///< Words for that program.
  std::string cpu_bind{};
  std::string numa_binding{};
  std::string signals{};
  std::vector<std::string> env{};       ///< NAME=VALUE or NAME.
  std::string config_file{};            ///< Instead of the usual one.
  std::string deepspeed_config_file{};  ///< For the program.
  bool bind_cores_to_rank = false;
  bool standalone = false;
  bool module = false;
  bool no_python = false;
  bool dry_run = false;
};

/// Adds the options to `command`, in groups. `flags` must outlive it.
void add_launch_flags(CLI::App& command, LaunchFlags& flags);

/// Adds, without a line in the help, options of torchrun, Accelerate and DeepSpeed that Lockstep
/// cannot follow: giving one is a ConfigError that says why, and what to do instead.
void add_refused_flags(CLI::App& command);

/// The job that `flags` mean on this machine, whose environment is `inherited`. ConfigError, naming
/// the flag, for what makes no sense or contradicts another flag.
launcher::JobOptions job_options(
    const LaunchFlags& flags,
    const launcher::Machine& machine,
    const std::vector<std::string>& inherited);

/// What the program's first word is. ConfigError if two flags disagree on it.
launcher::ProgramKind program_kind(const LaunchFlags& flags);

}  // namespace lockstep::cli
