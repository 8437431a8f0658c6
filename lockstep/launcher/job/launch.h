// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "lockstep/base/memory/packed.h"
#include "lockstep/config/settings/job_options.h"

namespace lockstep {
namespace launcher {

/// Implements launch() for results that are bytes.
std::vector<std::string> launch_self(
    const std::function<std::string()>& body, const config::JobOptions& options);

}  // namespace launcher

/// Further options of launch(): start, core binding, logs and monitoring of the ranks. Options for
/// several hosts (nodes, hostfile) are refused.
using LaunchOptions = config::JobOptions;

/// Runs `body` in `ranks` processes of this program, and returns their results in rank order.
///
/// Modelled on Accelerate's notebook_launcher. Returns nothing if `body` returns nothing.
///
///     const std::vector<double> losses = lockstep::launch(train, 2);
///
/// The program is executed again for each rank, with the same arguments, and runs up to this call,
/// in which it runs `body` and ends (by std::exit). So main must reach this call in the same way
/// each time, and code before it runs in every rank as well: call it first. Results of earlier
/// calls are returned again in the ranks of a later one. The ranks share no memory with this
/// process and return only results. Packed must be able to send them: numbers, plain structs,
/// strings, tensors, vectors of these.
///
/// Throws ConfigError or Error if a rank fails, with the first error's message and its rank; the
/// other ranks have been ended by then. Throws ConfigError inside a rank of this or another
/// launcher. Reports an error before the call as "ended before it reached launch()". Forwards
/// signals to the ranks, as `lockstep launch` does. If the ranks end by a signal, so does this
/// process; if they saved their state and ended with 75, this process ends with 75, too.
///
/// Cost: two forks and an exec per rank, and the program's own start. Call it from one thread;
/// others may run.
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
