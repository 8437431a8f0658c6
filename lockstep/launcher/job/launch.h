// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <type_traits>
#include <vector>

#include "lockstep/base/packed.h"
#include "lockstep/launcher/job/launch_self.h"

namespace lockstep {

/// What launch() can be told besides: how the ranks are started, bound to cores, logged and
/// watched. What concerns other hosts (nodes, hostfile) is refused.
using LaunchOptions = launcher::JobOptions;

/// Runs `body` in `ranks` processes of this program, a world of that size, and returns what each of
/// them returned, in rank order; nothing if `body` returns nothing. Accelerate's notebook_launcher.
///
///     const std::vector<double> losses = lockstep::launch(train, 2);
///
/// How: the program is executed again for each rank, with the same arguments, and runs up to this
/// call, in which it then runs `body` and ends (by std::exit, without going on). So main must come
/// here the same way each time, and what it does before is done in every rank as well: begin with
/// the call. Results of earlier calls are returned again in the ranks of a later one. The ranks
/// share nothing with this process: what `body` changes stays theirs, results are what comes back.
/// Results are what Packed can send: numbers, plain structs, strings, tensors, vectors of these.
///
/// Throws when a rank fails, with the first error's message and its rank: ConfigError if that was
/// one, else Error; the other ranks have been ended by then, and none is left. A signal to this
/// process is passed on to the ranks, as by `lockstep launch`; if they end of it, so does this
/// process; if they saved their state and ended with 75, this process ends with 75, too.
/// ConfigError inside a rank, of this or another launcher. Errors on the way to the call show as
/// "ended before it came to launch()".
///
/// Cost: two forks and an exec a rank, and the program's own start. Call from one thread; others
/// may run.
template <typename Body>
auto launch(const Body& body, int ranks, LaunchOptions options = {}) {
  using Result = std::decay_t<std::invoke_result_t<const Body&>>;
  options.ranks = ranks;
  if constexpr (std::is_void_v<Result>) {
    launcher::launch_self(
        [&body] {
          body();
          return std::string();
        },
        options);
  } else {
    std::vector<Result> results;
    for (const std::string& bytes :
         launcher::launch_self([&body] { return pack<Result>(body()); }, options)) {
      results.push_back(unpack<Result>(bytes));
    }
    return results;
  }
}

}  // namespace lockstep
