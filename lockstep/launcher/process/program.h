// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/env.h"

namespace lockstep::launcher {

/// The program of every rank.
struct Program {
  std::string path;               ///< The file to execute.
  std::vector<std::string> argv;  ///< Its arguments, argv[0] as the user wrote it.
  bool is_python = false;         ///< A script or module; `path` is the interpreter.
};

/// The kind of the first word of a command.
enum class ProgramKind {
  kAny,     ///< A Python script if it ends in `.py`, else a program.
  kModule,  ///< A Python module, for `python -m`.
  kBinary   ///< A program, even if its name ends in .py.
};

/// Finds the program of `words` (name, then arguments), before anything is started.
///
/// A name with a slash is a file; any other is looked up in PATH, as a shell does. A script or
/// module is run by $LOCKSTEP_PYTHON, else by python3 from PATH. Throws ConfigError, naming the
/// file, if it does not exist or is not executable; Python itself reports a missing module.
Program find_program(
    const std::vector<std::string>& words,
    const Environment& environment,
    ProgramKind kind = ProgramKind::kAny);

}  // namespace lockstep::launcher
