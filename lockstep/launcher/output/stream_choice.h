// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace lockstep::launcher {

/// A subset of a rank's two streams.
struct Streams {
  bool out = false;
  bool err = false;
};

/// Parses the streams of each of `ranks` local ranks, in torchrun's grammar.
///
/// 0 is none, 1 stdout, 2 stderr, 3 both. `text` is one number for all ranks, or
/// `RANK:NUMBER[,RANK:NUMBER...]` with none for the others. Empty: none. Throws ConfigError, with
/// `flag`, for anything else, and for an unknown or repeated rank. Pure.
std::vector<Streams> parse_streams(const std::string& text, int ranks, const std::string& flag);

/// Parses a list of local ranks ("0,2"); all if it is empty. Throws as parse_streams() does.
std::vector<bool> parse_shown_ranks(const std::string& text, int ranks, const std::string& flag);

}  // namespace lockstep::launcher
