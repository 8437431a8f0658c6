// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "cli/completion/command_tree.h"

namespace lockstep::cli {

/// The manual page lockstep(1) in the man macros of roff: every command with its usage, options
/// and examples, as --help tells of them, then exit codes and files.
std::string man_page(const CommandEntry& root);

}  // namespace lockstep::cli
