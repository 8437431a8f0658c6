// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/env.h"

namespace lockstep::launcher {

/// What every rank runs.
struct Program {
  std::string path;               ///< The file to execute.
  std::vector<std::string> argv;  ///< Its arguments, argv[0] as the user wrote it.
  bool is_python = false;         ///< A script given to an interpreter found here.
};

/// Finds the program that `words` (name, then arguments) asks for, before anything is started.
///
/// A name with a slash is a file; any other is looked up in PATH, as a shell does. A name that ends
/// in
/// `.py` is run by $LOCKSTEP_PYTHON, else by python3 from PATH. ConfigError, naming it, if there is
/// no such file or it may not be executed.
Program find_program(const std::vector<std::string>& words, const Environment& environment);

}  // namespace lockstep::launcher
