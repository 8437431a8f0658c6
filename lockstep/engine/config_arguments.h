// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

namespace lockstep {

/// What DeepSpeed's launcher and its users write on a program's command line; the `args` of
/// InitializeOptions.
struct ConfigArguments {
  /// --deepspeed: for the program to look at; initialize() does not.
  bool deepspeed = false;
  /// --deepspeed_config FILE, or --deepspeed_config=FILE. Empty: not given.
  std::filesystem::path deepspeed_config = {};
};

/// Takes these arguments out of a program's own, so that it need not know them: `argv` has the
/// others then, in their order, with a null behind the last, and `argc` says how many. Behind "--"
/// nothing is looked at; of an option that comes twice the last one counts, as with DeepSpeed's
/// argparse. --deepscale and --deepscale_config are old names, and warned of.
///
/// ConfigError for a --deepspeed_config without a file, and a --deepspeed with a value; the
/// arguments are what they were then. Thread-safe, but for argv.
ConfigArguments add_config_arguments(int& argc, char** argv);

}  // namespace lockstep
