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

/// What the first of the words is.
enum class ProgramKind {
  kAny,     ///< A Python script if it ends in `.py`, else a program.
  kModule,  ///< A Python module, for `python -m`.
  kBinary   ///< A program, whatever it is called.
};

/// Finds the program that `words` (name, then arguments) asks for, before anything is started.
///
/// A name with a slash is a file; any other is looked up in PATH, as a shell does. A script or
/// module is run by $LOCKSTEP_PYTHON, else by python3 from PATH. ConfigError, naming it, if there
/// is no such file or it may not be executed; whether there is such a module, Python says.
Program find_program(
    const std::vector<std::string>& words,
    const Environment& environment,
    ProgramKind kind = ProgramKind::kAny);

}  // namespace lockstep::launcher
