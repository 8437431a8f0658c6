// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace lockstep::launcher {

/// A host of a hostfile.
struct Host {
  std::string name;
  int slots = 1;  ///< How many ranks it may take.
};

/// The hosts that `text` names, in its order; `file` is what errors call it.
///
/// A line is `NAME`, `NAME slots=N` (DeepSpeed's and OpenMPI's), `NAME slots=N max_slots=M` or
/// `NAME:N` (OpenMPI's); `[ADDRESS]:N` for IPv6. `#` begins a comment, empty lines and Windows'
/// line ends do no harm. A host without a number has one slot. OpenMPI's `max_slots` and
/// `max-slots` must not be below `slots`; `slots` is what counts.
///
/// ConfigError with file:line:column for anything else: a host twice, no host at all, a number that
/// is none or not from 1 to 65536, an unknown word, and a name that holds anything but letters,
/// digits and `._:@%-` or begins with `-`: names become arguments of ssh. Pure.
std::vector<Host> parse_hostfile(const std::string& text, const std::string& file);

/// The hosts of that file; ConfigError if it cannot be read or holds more than 1 MiB.
std::vector<Host> read_hostfile(const std::string& file);

/// Why `name` cannot be a host's name ("begins with '-'"); empty if it can.
std::string host_name_fault(const std::string& name);

}  // namespace lockstep::launcher
