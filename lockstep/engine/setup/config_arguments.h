// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

namespace lockstep {

/// DeepSpeed's command-line arguments of a program; the `args` of InitializeOptions.
struct ConfigArguments {
  /// --deepspeed: for the program; initialize() does not read it.
  bool deepspeed = false;
  /// --deepspeed_config FILE, or --deepspeed_config=FILE. Empty: not given.
  std::filesystem::path deepspeed_config = {};
};

/// Removes these arguments from a program's command line. `argv` then has the remaining ones, in
/// order, with a null after the last, and `argc` is their number. Arguments after "--" are not
/// read. The last of repeated options counts, as with DeepSpeed's argparse. --deepscale and
/// --deepscale_config are old names, with a warning.
///
/// Throws ConfigError for a --deepspeed_config without a file, and a --deepspeed with a value; the
/// arguments are unchanged then. Thread-safe, except for argv.
ConfigArguments add_config_arguments(int& argc, char** argv);

}  // namespace lockstep
