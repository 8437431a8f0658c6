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

/// Returns the file of this process's program, without links in its path.
std::string own_executable();

/// Returns the Python interpreter for scripts and modules: $LOCKSTEP_PYTHON, else the python3 or
/// python beside `launcher`, else "python3", to be looked up in PATH.
///
/// The one beside `launcher` counts if both are in a virtual environment, or if the package
/// lockstep is installed there. So a launcher that pip has installed uses its environment also if
/// that is not activated, as `accelerate` and `torchrun` do, and /usr/bin/lockstep of the Debian
/// package uses the activated one. `launcher` must have no links in its path.
std::string python_for(
    const Environment& environment, const std::string& launcher = own_executable());

/// Finds the program of `words` (name, then arguments), before anything is started.
///
/// A name with a slash is a file; any other is looked up in PATH, as a shell does. A script or
/// module is run by python_for(). Throws ConfigError, naming the file, if it does not exist or is
/// not executable; Python itself reports a missing module.
Program find_program(
    const std::vector<std::string>& words,
    const Environment& environment,
    ProgramKind kind = ProgramKind::kAny,
    const std::string& launcher = own_executable());

}  // namespace lockstep::launcher
