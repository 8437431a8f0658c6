// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace lockstep::launcher {

/// Some of a rank's two streams.
struct Streams {
  bool out = false;
  bool err = false;
};

/// Which streams of each of `ranks` local ranks `text` names, in torchrun's grammar: 0 none,
/// 1 stdout, 2 stderr, 3 both; one number for all ranks, or `RANK:NUMBER[,RANK:NUMBER...]` with
/// none for those not named. Empty: none. ConfigError, with `flag`, for anything else, and for a
/// rank that is not there or is named twice. Pure.
std::vector<Streams> parse_streams(const std::string& text, int ranks, const std::string& flag);

/// Which local ranks `text` ("0,2") names; all if it is empty. ConfigError as above.
std::vector<bool> parse_shown_ranks(const std::string& text, int ranks, const std::string& flag);

}  // namespace lockstep::launcher
