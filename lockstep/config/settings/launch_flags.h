// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "lockstep/config/settings/job_options.h"

namespace lockstep::config {

/// The options of `lockstep launch` as given. Plain values are stored in `options`. The texts
/// depend on each other, or on this host; cli::job_options() parses them. Empty: not given.
struct LaunchFlags {
  JobOptions options{};
  std::string nproc_per_node{};  ///< A number, cpu, gpu or auto: ranks of each host.
  std::string num_processes{};   ///< The same, but a number counts the ranks of all hosts.
  std::string nnodes{};          ///< "2" or "2:2".
  std::string rdzv_backend{};
  std::string rdzv_endpoint{};  ///< HOST or HOST:PORT.
  std::string rdzv_conf{};      ///< KEY=VALUE,...
  std::string launcher{};       ///< The program that starts the launchers of other hosts.
  std::string launcher_args{};  ///< Arguments for that program.
  std::string cpu_bind{};
  std::string numa_binding{};
  std::string signals{};
  std::vector<std::string> env{};  ///< NAME=VALUE or NAME.
  std::string config_file{};       ///< Replaces the default configuration file.
  std::string deepspeed_config_file{};
  bool bind_cores_to_rank = false;
  bool standalone = false;
  bool module = false;
  bool no_python = false;
  bool alias = false;  ///< accelerate and deepspeed mean Lockstep in the program.
  bool dry_run = false;
};

}  // namespace lockstep::config
