// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/comm/connect.h"
#include "lockstep/sync/data_parallel.h"

namespace lockstep {

struct AcceleratorOptions {
  /// Loaders: a batch is cut into one slice a process, instead of each process getting whole
  /// batches.
  bool split_batches = false;
  /// Loaders: every process gets equally many batches; the last round wraps to the epoch's
  /// beginning.
  bool even_batches = true;
  /// Trackers to log with, "tensorboard" and "jsonl".
  std::vector<std::string> log_with = {};
  /// Where trackers and automatic checkpoints go; needed for either.
  std::filesystem::path project_dir = {};
  /// The folder of this run's logs within project_dir.
  std::string project_name = "logs";
  DataParallelOptions data_parallel = {};
  /// LOCKSTEP_TIMEOUT_MS and LOCKSTEP_JOIN_TIMEOUT_MS, unless set here.
  ConnectOptions connect = ConnectOptions::from_environment(Environment::process());
};

}  // namespace lockstep
