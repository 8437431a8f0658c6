// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace lockstep::launcher {

/// A host of a hostfile.
struct Host {
  std::string name;
  int slots = 1;  ///< Its number of ranks.
};

/// Parses the hosts of `text`, in order; `file` is its name in errors.
///
/// A line is `NAME`, `NAME slots=N` (DeepSpeed's and OpenMPI's), `NAME slots=N max_slots=M` or
/// `NAME:N` (OpenMPI's); `[ADDRESS]:N` for IPv6. `#` begins a comment; empty lines and Windows line
/// ends are accepted. A host without a number has one slot. OpenMPI's `max_slots` and `max-slots`
/// must not be below `slots`; `slots` counts.
///
/// Throws ConfigError with file:line:column for anything else: a repeated host, no host, a number
/// that is invalid or not from 1 to 65536, an unknown word. A name must have only letters, digits
/// and `._:@%-`, and no leading `-`, since names become arguments of ssh. Pure.
std::vector<Host> parse_hostfile(const std::string& text, const std::string& file);

/// Reads the hosts of that file; throws ConfigError if it cannot be read or is larger than 1 MiB.
std::vector<Host> read_hostfile(const std::string& file);

/// Returns why `name` is not a valid host name ("begins with '-'"); empty if it is one.
std::string host_name_fault(const std::string& name);

}  // namespace lockstep::launcher
